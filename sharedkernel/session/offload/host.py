"""Move memory of this process to a file and back, page by page, at unchanged addresses.

*Away* means: the pages are in an unlinked file, and that file is mapped, for reading only, where the memory was. So

- no address changes: views, parameters, optimizers, saved tensors of autograd and arrays that share a tensor's memory
  notice nothing, whatever version, size or allocator they have;
- code that reads meanwhile reads the right bytes (the system loads the page from the file); code that writes ends the
  process with a fault instead of losing what was written. User code does neither, see :mod:`.gate`;
- a step that fails half-way leaves right bytes everywhere: pages are away or back, each by itself. What fails while
  memory leaves is undone by forgetting the file; what fails while it comes back is undone by mapping the file again;
- nothing is left in the file's directory when the process dies, in whatever way;
- mapped for reading, the pages do not count against a limit on the process's private memory.

(Resizing storages to nothing and back was measured first: the heap does not give the same holes out again, and under
the limit that fitted before not one model of five came back.)

The file is written to the disk (`fdatasync`) before a page is freed: an error of the disk must not show when the memory
is gone. This module knows no tensors and no kernel; :mod:`.storages` says what to move, :mod:`.residency` when.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.paths import make_private_directory
from sharedkernel.session.memory.host_meter import unlimited_rlimit
from sharedkernel.session.offload.storages import Region, Survey
from sharedkernel.units import format_bytes

#: bytes that go or come back as one piece, between two looks at whether to stop
PIECE_BYTES = 4 << 20
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class CannotOffload(SharedKernelError):
    """The memory stays where it is; nothing was changed.

    Parameters
    ----------
    message
        One sentence for a person.
    reason
        Stable slug, as in :class:`~sharedkernel.protocol.OffloadDeclinedReport`.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RestoreFailed(SharedKernelError):
    """The memory could not be brought back, and is away as before."""


class PendingOffload:
    """Memory on its way out: written by one thread, while the main thread may go on; then given up, or left and away.

    Each way to move memory extends it. By itself it is that of a session that keeps none between its iterations.

    Parameters
    ----------
    size
        Bytes to move.
    """

    def __init__(self, size: int) -> None:
        #: bytes to move, and once it is away, that were moved
        self.size = size
        #: whether :meth:`commit` is no longer possible
        self.is_stopped = False

    def stop(self) -> None:
        """Make :meth:`write` end soon (any thread)."""
        self.is_stopped = True

    def check_not_stopped(self) -> None:
        """Raise CannotOffload if it was stopped."""
        if self.is_stopped:
            raise CannotOffload("Its code runs.", reason="busy")

    def write(self) -> None:
        """Copy everything away (any thread).

        Raises
        ------
        CannotOffload
            When that fails, or was stopped.
        """

    def commit(self) -> None:
        """Free the memory (in the main thread, when all is written and nothing changed since it began)."""

    def abort(self) -> None:
        """Forget the copy; the memory was never gone."""

    def restore(self, pause: Callable[[int], None]) -> None:
        """Bring everything back, or nothing.

        Parameters
        ----------
        pause
            Called now and then with the bytes that are back; what it raises undoes all of it.

        Raises
        ------
        RestoreFailed
            When it cannot be brought back, and is away as before.
        """
        pause(0)


class RegionOffload(PendingOffload):
    """Regions on their way to a file, or in it.

    Parameters
    ----------
    survey
        What to move.
    directory
        Where the file is made (0700, created when it is not there).

    Raises
    ------
    CannotOffload
        When the directory cannot be used, or has no room.
    """

    def __init__(self, survey: Survey, directory: Path) -> None:
        super().__init__(survey.size)
        #: what lies in the file, one after the other
        self._regions = survey.regions
        #: held as long as it is away: the heap would write to what is freed
        self._owners = survey.owners
        self._directory = directory
        self._descriptor = self._make_file()

    def _make_file(self) -> int:
        descriptor = -1
        try:
            make_private_directory(self._directory, named_by="SHAREDKERNEL_OFFLOAD_DIR")
            descriptor = _unlinked_file(self._directory)
            os.posix_fallocate(descriptor, 0, self.size)  # no room is said here, before anything is written
        except ConfigError as error:
            raise CannotOffload(f"Memory cannot be moved to the disk: {error}", reason="disk") from None
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise self._cannot_write(error) from error
        return descriptor

    def _cannot_write(self, error: OSError) -> CannotOffload:
        return CannotOffload(
            f"{format_bytes(self.size)} cannot be moved to {self._directory}: {error.strerror or error}; "
            "free space there, or name another directory by SHAREDKERNEL_OFFLOAD_DIR.",
            reason="disk",
        )

    def write(self) -> None:
        """Write everything to the disk; see :meth:`PendingOffload.write`."""
        try:
            for piece, offset in self._pieces():
                self.check_not_stopped()
                view, done = _bytes(piece), 0
                while done < piece.size:
                    done += os.pwrite(self._descriptor, view[done:], offset + done)
            self.check_not_stopped()
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._cannot_write(error) from error
        self.check_not_stopped()

    def commit(self) -> None:
        """Free the memory; see :meth:`PendingOffload.commit`."""
        offset = 0
        gone = []
        for region in self._regions:
            try:
                _map(region, mmap.PROT_READ, 0, self._descriptor, offset)
            except OSError:  # no more mappings to be had: the rest stays
                break
            offset += region.size
            gone.append(region)
        self._regions, self.size = gone, offset

    def abort(self) -> None:
        """Forget the file."""
        os.close(self._descriptor)

    def restore(self, pause: Callable[[int], None]) -> None:
        """Bring everything back from the file; see :meth:`PendingOffload.restore`."""
        done = 0
        # What comes back was counted against the limit before it went, but together with free memory of the heap, which
        # one that was set since then leaves out.
        with unlimited_rlimit():
            try:
                for piece, offset in self._pieces():
                    pause(done)
                    self._bring_back(piece, offset)
                    done += piece.size
            except BaseException as error:
                self._send_away(done + PIECE_BYTES)
                if isinstance(error, OSError):
                    reason = error.strerror or error
                    raise RestoreFailed(
                        f"{format_bytes(self.size)} of this notebook's memory could not be brought back from the disk: "
                        f"{reason}. It is still there: run the cell again, or ask who runs the server to look at the "
                        "disk."
                    ) from error
                raise
            _close_meanwhile(self._descriptor)

    def _pieces(self) -> Iterator[tuple[Region, int]]:
        """Yield each piece and where it is in the file."""
        offset = 0
        for region in self._regions:
            for start in range(0, region.size, PIECE_BYTES):
                yield Region(region.address + start, min(PIECE_BYTES, region.size - start)), offset + start
            offset += region.size

    def _bring_back(self, piece: Region, offset: int) -> None:
        _map(piece, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_ANONYMOUS, -1, 0)
        view, done = _bytes(piece), 0
        while done < piece.size:
            read = os.preadv(self._descriptor, [view[done:]], offset + done)
            if read == 0:
                raise OSError(errno.EIO, "its file is shorter than it was")
            done += read

    def _send_away(self, size: int) -> None:
        """Map the file over the first *size* bytes again. What cannot be mapped is back, which is as right."""
        for piece, offset in self._pieces():
            if offset >= size:
                break
            try:
                _map(piece, mmap.PROT_READ, 0, self._descriptor, offset)
            except OSError:
                with contextlib.suppress(OSError):
                    self._bring_back(piece, offset)


def _unlinked_file(directory: Path) -> int:
    """Open a file that has no name, is ours alone, and is closed in every program started from here."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
    descriptor, name = tempfile.mkstemp(dir=directory)  # a file system without files that have no name
    os.unlink(name)
    return descriptor


def _close_meanwhile(descriptor: int) -> None:
    """Close a large file that has no name without waiting for it: the system frees its pages, which takes long.

    (150 to 220 ms for 512 MiB, half as long as reading them: a third of what restoring took.) The thread runs only
    a C function. A thread that runs Python code needs memory for its first frame; where the executor has just set a
    limit again it dies of that, and :meth:`threading.Thread.start` then waits for ever.
    """
    try:
        _thread.start_new_thread(os.close, (descriptor,))
    except (RuntimeError, MemoryError):  # the system has no room for one more thread
        os.close(descriptor)


def _bytes(region: Region) -> memoryview:
    return memoryview((ctypes.c_char * region.size).from_address(region.address)).cast("B")


def _map(region: Region, protection: int, flags: int, descriptor: int, offset: int) -> None:
    """Put a private mapping in the place of *region*."""
    flags |= mmap.MAP_PRIVATE | _MAP_FIXED
    if _libc.mmap(region.address, region.size, protection, flags, descriptor, offset) == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
