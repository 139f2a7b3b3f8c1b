"""Steps of the self-test that passed before, with the same driver, torch, card and version of ours: a JSON file.

::

    {"sharedkernel_self_test": 1, "passed": [{"driver": "570.86", "torch": "2.11.0+cu130", "card": "NVIDIA H200",
     "uuid": "GPU-…", "sharedkernel": "0.1.0", "steps": ["training", …]}]}

The file is replaced as a whole, so that a crash leaves the old one or the new one. A file that cannot be read, or is of
another kind, is trusted in nothing and left as it is: it may be somebody's who mistyped a name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sharedkernel._version import __version__
from sharedkernel.errors import SharedKernelError
from sharedkernel.system.atomic_file import replace_file

_FORMAT = "sharedkernel_self_test"
_VERSION = 1
_MOST_BYTES = 1 << 20


class TrustUnusable(SharedKernelError):
    """A file of earlier results cannot be used: one sentence that says why and what to do."""

    reason = "trust"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The circumstances under which earlier results still count."""

    #: version of the driver
    driver: str
    #: version of torch, with its build
    torch: str
    #: name of the card
    card: str
    uuid: str
    sharedkernel: str = __version__


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
        return frozenset(name for entry in self._read() if _is_of(entry, identity) for name in entry["steps"])

    def record(self, identity: Identity, steps: Iterable[str]) -> None:
        """Write the names of *all* steps that are to be trusted from now on; others' entries stay.

        Raises
        ------
        TrustUnusable
            When the file is there and not one of earlier results, or cannot be written.
        """
        entries = [entry for entry in self._read() if not _is_of(entry, identity)]
        if names := sorted(steps):
            entries.append({**asdict(identity), "steps": names})
        try:
            replace_file(self.path, json.dumps({_FORMAT: _VERSION, "passed": entries}, indent=1) + "\n")
        except OSError as error:
            raise TrustUnusable(
                f"the self-test's results cannot be written to {self.path} ({error.strerror}); name another file."
            ) from None

    def _read(self) -> list[dict[str, Any]]:
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
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        if not _is_whole(document):
            raise TrustUnusable(
                f"{self.path} is no file of self-test results, so none is trusted; remove it, or name another file."
            )
        return document["passed"]


def _is_of(entry: dict[str, Any], identity: Identity) -> bool:
    return {name: entry.get(name) for name in asdict(identity)} == asdict(identity)


def _is_whole(document: Any) -> bool:
    """Whether a document is one that :class:`TrustFile` wrote."""
    if not isinstance(document, dict) or document.get(_FORMAT) != _VERSION:
        return False
    entries = document.get("passed")
    return isinstance(entries, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("steps"), list)
        and all(isinstance(name, str) for name in entry["steps"])
        for entry in entries
    )
