"""The modules that sessions share with the process that they are forked from, as the debugger and IPython see them.

Both look at all of them for each kernel. Each look counts a reference, which writes to a page that all sessions share:
about 14 MiB of copies a session. Here they are looked at once, before the fork.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

from ipykernel import ipkernel
from IPython.core import shellapp

#: files of the modules that were imported before the fork; the debugger does not step into them
imported_files: list[str] = []
_names: set[str] = set()


def note() -> None:
    """Note what is imported by now (in the warm parent, once it has imported everything)."""
    imported_files[:] = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    _names.update(sys.modules)


def imported_names() -> set[str]:
    """Return the names of all modules that are imported by now; those since the fork are the last in `sys.modules`."""
    _names.update(islice(reversed(sys.modules), max(0, len(sys.modules) - len(_names))))
    return _names


class _SysWithoutModules:
    """`sys` for a module of IPython's, which notes what was imported (for `%reset --aggressive`)."""

    modules: dict[str, Any] = {}  # noqa: RUF012 (as in sys)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys, name, value)


@contextlib.contextmanager
def unaware_of_modules() -> Iterator[None]:
    """Keep ipykernel and IPython from looking at every imported module while they make a kernel."""
    real = ipkernel.sys, shellapp.sys
    ipkernel.sys = SimpleNamespace(modules={}, platform=sys.platform)  # type: ignore[assignment]
    shellapp.sys = _SysWithoutModules()  # type: ignore[assignment]
    try:
        yield
    finally:
        ipkernel.sys, shellapp.sys = real
