"""The modules that sessions share with the process that they are forked from, as the debugger sees them.

It looks at all of them for each kernel; here they are looked at once, before the fork.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace

from ipykernel import ipkernel

#: files of the modules that were imported before the fork; the debugger does not step into them
imported_files: list[str] = []


def note_imported_files() -> None:
    """Fill :data:`imported_files` (in the warm parent, once it has imported everything)."""
    imported_files[:] = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]


@contextlib.contextmanager
def unaware_of_modules() -> Iterator[None]:
    """Keep ipykernel from looking at every imported module while it makes a kernel.

    It does so for its debugger's list of files. Each look counts a reference, which writes to a page that all sessions
    share: about 10 MiB of copies a session, of 36. The list is made once instead, by :func:`note_imported_files`.
    """
    real = ipkernel.sys
    ipkernel.sys = SimpleNamespace(modules={}, platform=sys.platform)  # type: ignore[assignment]
    try:
        yield
    finally:
        ipkernel.sys = real
