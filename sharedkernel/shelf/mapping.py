"""The shelf as a notebook sees it: a mapping from names to values.

What only a session has (torch, msgspec) is imported once it is known that this is one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from sharedkernel.errors import SharedKernelError

if TYPE_CHECKING:
    from sharedkernel import protocol
    from sharedkernel.ipc.fd_client import DescriptorClient

_NO_SESSION = (
    'a shelf exists only inside a notebook with the kernel "Shared GPU (PyTorch)"; pick that kernel to use it.'
)


class Shelf(MutableMapping[str, Any]):
    """Named values in memory that outlives this kernel; see :mod:`sharedkernel.shelf`.

    All of its methods raise :class:`~sharedkernel.errors.SharedKernelError` in a process that is no session, and
    :class:`~sharedkernel.errors.ExecutorUnavailable` when no executor answers for a while.
    """

    def __getitem__(self, name: str) -> Any:
        """Return the value of *name*; its tensors are the memory on the shelf.

        Raises
        ------
        KeyError
            When there is none.
        """
        return self._read(name, private=False)

    def copy(self, name: str) -> Any:
        """Return the value of *name* with tensors of their own, on the device where they were if it is here.

        Raises
        ------
        KeyError
            When there is none.
        """
        return self._read(name, private=True)

    def _read(self, name: str, *, private: bool) -> Any:
        client = _connected(name)
        from sharedkernel import protocol
        from sharedkernel.shelf import layout, memory

        _, (descriptor,) = client.request(protocol.FetchShelved(name=name))
        mapped = memory.map_shared(descriptor.fileno())
        descriptor.close()  # the mapping has its own
        return layout.read(mapped, private=private)

    def __setitem__(self, name: str, value: Any) -> None:
        """Put a copy of *value* on the shelf, instead of what had that name.

        Raises
        ------
        TypeError, ValueError
            When *value* holds something that cannot be shelved; the sentence says where it is and what to do.
        QuotaExceeded, Refused
            When there is no room; nothing was changed.
        """
        client = _connected(name)
        from sharedkernel import protocol
        from sharedkernel.shelf import memory

        plan = memory.plan(value)
        reserved, (descriptor,) = client.request(protocol.ReserveShelf(name=name, bytes=plan.size))
        try:
            memory.write(plan, descriptor.fileno())
            client.request(protocol.Shelve(number=reserved.number))
        except OSError as error:
            raise SharedKernelError(
                f"{name!r} could not be shelved: {error.strerror}; nothing was changed: free some memory and retry."
            ) from error
        finally:
            descriptor.close()  # until it is shelved, the file lasts no longer

    def __delitem__(self, name: str) -> None:
        """Take *name* off the shelf; who read it before keeps its memory.

        Raises
        ------
        KeyError
            When it is not there.
        """
        client = _connected(name)
        from sharedkernel import protocol

        client.request(protocol.Unshelve(name=name))

    def __iter__(self) -> Iterator[str]:
        return iter([entry.name for entry in self._listing().entries])

    def __len__(self) -> int:
        return len(self._listing().entries)

    def __contains__(self, name: object) -> bool:
        return any(entry.name == name for entry in self._listing().entries)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        """Return a table of what is there, or why nothing can be."""
        try:
            listing = self._listing()
        except SharedKernelError as error:
            return f"<Shelf: {error}>"
        return _table(listing)

    def _listing(self) -> protocol.ShelfListing:
        client = _connected()
        from sharedkernel import protocol

        message, _ = client.request(protocol.ListShelf())
        assert isinstance(message, protocol.ShelfListing)
        return message


def _connected(name: object = "") -> DescriptorClient:
    """Return the way to the executor of this process; raise TypeError where *name* cannot be on a shelf."""
    if not isinstance(name, str):
        raise TypeError(f"names on a shelf are text, not {type(name).__name__}.")
    view = sys.modules.get("sharedkernel.ipc.current_session")
    if view is None or (channel := view.channel()) is None:
        raise SharedKernelError(_NO_SESSION)
    return channel  # type: ignore[no-any-return]


def _table(listing: protocol.ShelfListing) -> str:
    from sharedkernel.units import format_bytes

    left = f"{format_bytes(listing.left_bytes)} can be shelved"
    if not listing.entries:
        text = f'Nothing is on your shelf; {left}: shelf["name"] = tensors'
    else:
        rows = [("name", "bytes", "shelved"), *(
            (entry.name, format_bytes(entry.bytes), time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.shelved_at)))
            for entry in listing.entries
        )]  # fmt: skip
        width, wide = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"{name:{width}}  {size:>{wide}}  {when}" for name, size, when in rows]
        text = "\n".join([*lines, f"{format_bytes(sum(entry.bytes for entry in listing.entries))} in all; {left}"])
    besides = listing.charged_bytes - sum(entry.bytes for entry in listing.entries)
    return text + (f"; {format_bytes(besides)} taken off it are still in use" if besides > 0 else "")
