"""What a fork shares: no secret, seed or name that sessions which start afresh would have each of their own."""

from __future__ import annotations

import json
import re

import pytest

from tests.executor.harness import Executor, ExecutorProcess

pytestmark = pytest.mark.heavy

#: prints the digest of every value that a module, or something in one, holds: numbers, texts, bytes, generators' states
_WALK = r"""
import gc, hashlib, json, random, sys, types
import numpy, torch
from multiprocessing import process as _process
_found, _seen = {}, set()
def _digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
def _walk(name, value, depth):
    if isinstance(value, (bool, type(None), type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
        return
    if isinstance(value, (bytes, bytearray, str, int, float)):
        _found[name] = _digest(value)
    elif isinstance(value, random.SystemRandom):
        return
    elif isinstance(value, random.Random):
        _found[name] = _digest(value.getstate())
    elif isinstance(value, numpy.random.RandomState):
        _found[name] = _digest(str(value.get_state(legacy=False)))
    elif isinstance(value, numpy.random.Generator):
        _found[name] = _digest(str(value.bit_generator.state))
    elif isinstance(value, torch.Generator):
        _found[name] = _digest(bytes(value.get_state().tolist()))
    elif depth and id(value) not in _seen:
        _seen.add(id(value))
        if isinstance(value, dict):
            inside = [(str(key), each) for key, each in list(value.items())[:200] if isinstance(key, (str, int))]
        elif isinstance(value, (list, tuple)):
            inside = [(str(place), each) for place, each in enumerate(value[:200])]
        else:
            inside = list(getattr(value, "__dict__", {}).items())
        for key, each in inside:
            _walk(f"{name}.{key}", each, depth - 1)
for _name, _module in sorted(sys.modules.items()):
    if _name != "__main__" and isinstance(_module, types.ModuleType):
        for _key, _value in list(vars(_module).items()):
            if not _key.startswith("__"):
                _walk(f"{_name}.{_key}", _value, 3)
_walk("authkey", _process.current_process().authkey, 1)
print(json.dumps(_found))
"""
#: no secrets: addresses and the order of sets, which follow from the layout of memory and the hash seed that a fork
#: shares (docs/security.md), when and by whom something was imported, bytes measured at a start, how many messages were
#: sent, and a key that only must be no word of a user's
_HARMLESS = re.compile(
    r"(_?ctypes\..*|.*\._libc\._handle|.*\._main|.*\._thread_id|torch\._C\..*|tokenize\..*|torch\.masked\..*"
    r"|torch\._dynamo\.variables\..*|_strptime\._TimeRE_cache\..*"
    r"|.*\.session\.message_count|.*\._fi?d|.*\._original_stdstream_copy|.*\._last_log_time|.*\.timestamp_zero"
    r"|.*\._meter\._baseline|logging\._startTime"
    r"|.*\.pydevd_schema_log\._pid(_msg)?"
    r"|torch\.distributed\._composable\.contract\.\w+_KEY)"
)


async def test_forked_sessions_share_nothing_that_each_should_have_alone(process: ExecutorProcess) -> None:
    """A value that two forked sessions have alike, and that differs between two that started afresh."""
    async with Executor(process) as executor:
        afresh = {"KERNEL_ENV_PYTORCH_JIT": "1"}
        found = []
        for environment in ({}, {}, afresh, afresh):
            notebook = await executor.notebook(env=environment)
            printed = (await notebook.run(_WALK)).text.splitlines()  # a library's warnings, too
            found.append(json.loads(next(line for line in printed if line.startswith("{"))))
        one, other, first, second = found
        assert len(one) > 10_000
        assert one["authkey"] != other["authkey"]
        shared = sorted(
            name
            for name, value in one.items()
            if other.get(name) == value and name in first and name in second and first[name] != second[name]
        )
        assert [name for name in shared if not _HARMLESS.fullmatch(name)] == []
