"""Steps of the self-test that passed before, with the same driver, torch, card and version of ours: a JSON file.

::

    {"sharedkernel_self_test": 1, "passed": [{"driver": "570.86", "torch": "2.11.0+cu130", "card": "NVIDIA H200",
     "uuid": "GPU-…", "sharedkernel": "0.1.0", "steps": ["training", …]}]}

The file is replaced as a whole, so that a crash leaves the old one or the new one. A file that cannot be read, or is of
another kind, is trusted in nothing and left as it is: it may be somebody's who mistyped a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from sharedkernel._version import __version__
from sharedkernel.errors import SharedKernelError
from sharedkernel.system.atomic_file import replace_file

_MOST_BYTES = 1 << 20


class TrustUnusable(SharedKernelError):
    """A file of earlier results cannot be used: one sentence that says why and what to do."""

    reason = "trust"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The circumstances under which earlier results still count."""

    #: version of the driver
    driver: str
    #: version of torch, with its build
    torch: str
    #: name of the card
    card: str
    uuid: str
    sharedkernel: str = __version__


class _Passed(Identity, frozen=True, kw_only=True):
    """The steps that passed under some circumstances."""

    steps: list[str]

    def is_of(self, identity: Identity) -> bool:
        return msgspec.convert(self, Identity, from_attributes=True) == identity


class _Content(msgspec.Struct, kw_only=True):
    """The content of a file of earlier results."""

    sharedkernel_self_test: Literal[1]
    passed: list[_Passed]


class TrustFile:
    """One file of earlier results.

    Parameters
    ----------
    path
        Where it is, or is to be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def passed(self, identity: Identity) -> frozenset[str]:
        """Return the names of the steps that passed before; none without a file.

        Raises
        ------
        TrustUnusable
            When the file cannot be read, or is not one of earlier results.
        """
        return frozenset(name for entry in self._read() if entry.is_of(identity) for name in entry.steps)

    def record(self, identity: Identity, steps: Iterable[str]) -> None:
        """Write the names of *all* steps that are to be trusted from now on; others' entries stay.

        Raises
        ------
        TrustUnusable
            When the file is there and not one of earlier results, or cannot be written.
        """
        entries = [entry for entry in self._read() if not entry.is_of(identity)]
        if names := sorted(steps):
            entries.append(_Passed(**msgspec.structs.asdict(identity), steps=names))
        content = msgspec.json.format(msgspec.json.encode(_Content(sharedkernel_self_test=1, passed=entries)), indent=1)
        try:
            replace_file(self.path, content + b"\n")
        except OSError as error:
            raise TrustUnusable(
                f"the self-test's results cannot be written to {self.path} ({error.strerror}); name another file."
            ) from None

    def _read(self) -> list[_Passed]:
        try:
            with self.path.open("rb") as file:
                data = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TrustUnusable(
                f"{self.path} cannot be read ({error.strerror}), so no earlier self-test is trusted."
            ) from None
        try:
            return msgspec.json.decode(data, type=_Content).passed
        except (msgspec.DecodeError, RecursionError):
            raise TrustUnusable(
                f"{self.path} is no file of self-test results, so none is trusted; remove it, or name another file."
            ) from None
