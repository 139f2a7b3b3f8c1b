"""Properties that a few fixed examples check in the suite, and that are fuzzed for as long as one likes.

``FUZZ_SECONDS=600 python -m pytest --timeout=0 tests/fuzz`` gives each property that many seconds of examples that
were never tried before; what fails is printed as a smallest example.
"""

from __future__ import annotations

import functools
import os
import time
import typing
from collections.abc import Callable
from typing import Any

import hypothesis
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from sharedkernel import protocol

#: seconds of each property; 0: the suite's few examples
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
#: what lengths, counts and sizes go wrong at
_EDGES = (0, 1, -1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63))


def fuzz(*, examples: int, **given: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Check a property with *examples* examples of what is *given*, always the same ones unless it is fuzzed."""
    profile = settings(
        max_examples=200 if SECONDS else examples,
        derandomize=not SECONDS,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        checked = profile(hypothesis.given(**given)(test))

        @functools.wraps(checked)
        def run(*args: Any, **kwargs: Any) -> None:
            until = time.monotonic() + SECONDS
            checked(*args, **kwargs)
            while time.monotonic() < until:
                checked(*args, **kwargs)

        return run

    return decorate


integers = st.sampled_from(_EDGES) | st.integers(-(2**63), 2**64 - 1)
#: names and paths as people, and attackers, write them
texts = st.text(max_size=20) | st.sampled_from(["", "\0", "../../etc/passwd", "/", "a" * 5000, "ada", "=", "\n", "%00"])
json_values = st.recursive(
    st.none() | st.booleans() | integers | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type as msgspec describes it (`msgspec.inspect`)."""
    describe = msgspec.inspect
    match kind:
        case describe.NoneType():
            return st.none()
        case describe.BoolType():
            return st.booleans()
        case describe.IntType():
            return integers
        case describe.FloatType():
            return st.floats()
        case describe.StrType():
            return texts
        case describe.BytesType():
            return st.binary(max_size=40)
        case describe.LiteralType(values=values):
            return st.sampled_from(values)
        case describe.UnionType(types=kinds):
            return st.one_of(map(values_of, kinds))
        case describe.ListType(item_type=item):
            return st.lists(values_of(item), max_size=3)
        case describe.TupleType(item_types=items):
            return st.tuples(*map(values_of, items))
        case describe.DictType(key_type=key, value_type=value):
            return st.dictionaries(values_of(key), values_of(value), max_size=3)
        case describe.StructType(cls=struct, fields=fields):
            return st.builds(struct, **{field.name: values_of(field.type) for field in fields})
        case _:
            return json_values


def messages(accepted: Any, *, but: tuple[type, ...] = ()) -> st.SearchStrategy[protocol.Message]:
    """Return messages of the union *accepted*, with any values in them, except of the types *but*."""
    kinds = typing.get_args(accepted) or (accepted,)
    return st.one_of(values_of(msgspec.inspect.type_info(kind)) for kind in kinds if kind not in but)


@st.composite
def mangled(draw: st.DrawFn, good: st.SearchStrategy[bytes]) -> bytes:
    """Return what is good, with a piece of it cut out and something else put in."""
    data = draw(good)
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.binary(max_size=8)) + data[at + draw(st.integers(0, 8)) :]


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def streams(good: st.SearchStrategy[protocol.Message]) -> st.SearchStrategy[list[bytes]]:
    """Return what may be sent on a control socket, piece by piece: messages, mangled ones, and noise."""
    encoded = good.map(protocol.encode)
    noise = st.binary(max_size=64)
    return st.lists(encoded | mangled(encoded) | noise | noise.map(_frame), min_size=1, max_size=6)
