"""Build the launch hook, and control it from the process that it is loaded into."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: kinds of calls
LAUNCH, COPY, ALLOCATION = 1, 2, 4
ALL = LAUNCH | COPY | ALLOCATION
#: results of the driver that an interrupted call may return
OUT_OF_MEMORY, OPERATING_SYSTEM, NOT_READY = 2, 304, 600

_HERE = Path(__file__).parent
_FLAGS = ("-std=c17", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")


def driver_path() -> Path:
    """Return the path of the driver's library, which this process loads for it.

    Raises
    ------
    OSError
        When there is none.
    """
    ctypes.CDLL("libcuda.so.1")
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = [line.split(maxsplit=5)[5].strip() for line in file if "/libcuda.so" in line]
    if not paths:
        raise OSError("The driver was loaded, but is not listed in /proc/self/maps.")
    return Path(paths[0])


def build(folder: Path, driver: Path | None = None) -> Path:
    """Compile the hook in front of a driver, and the loop that times calls.

    Parameters
    ----------
    folder
        Where the libraries go.
    driver
        None: that of this machine.

    Returns
    -------
    Path of the hook, to load before anything else loads the driver: in `LD_PRELOAD`, or by `ctypes`.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        When there is no driver or no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise OSError("There is no C compiler here.")
    driver = driver or driver_path()
    stand_in, hook = folder / "stand-in.so", folder / "libcuda.so.1"

    def compile_library(out: Path, *options: str) -> None:
        subprocess.run([compiler, *_FLAGS, "-o", str(out), *options], check=True, timeout=60)

    # A library's dependencies are named by their sonames: this one, in the driver's place, has the driver's path.
    compile_library(stand_in, "-x", "c", "/dev/null", f"-Wl,-soname,{driver}")
    needs_driver = ("-Wl,--no-as-needed", str(stand_in), "-Wl,-soname,libcuda.so.1")
    compile_library(hook, f'-DDRIVER="{driver}"', str(_HERE / "hook.c"), *needs_driver)
    compile_library(folder / "timing.so", str(_HERE / "timing.c"))
    return hook


class _Settings(ctypes.Structure):
    _fields_ = (
        ("word", ctypes.c_void_p),
        ("gated", ctypes.c_int),
        ("interrupted_result", ctypes.c_int),
        ("wanted", ctypes.c_int),
        ("only_counts", ctypes.c_int),
    )


class Hook:
    """The hook in this process, with a word of its own; every call passes until :meth:`close_gate`.

    Parameters
    ----------
    page
        A mapping whose first word is the grant's; None: of this process alone.
    """

    def __init__(self, page: mmap.mmap | None = None) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")  # the hook, by its soname
        self.library.launch_hook_real.restype = ctypes.c_void_p
        self.library.launch_hook_waiting.restype = ctypes.c_long
        self.library.launch_hook_missed.restype = ctypes.c_long
        self.library.launch_hook_seen.restype = ctypes.c_long
        self._word = ctypes.c_int64.from_buffer(page if page is not None else mmap.mmap(-1, mmap.PAGESIZE))
        self._word.value = 1

    def close_gate(
        self, *, gated: int = ALL, interrupted_result: int = 0, wanted: int = -1, only_counts: bool = False
    ) -> None:
        """Let calls wait from now on.

        Parameters
        ----------
        gated
            Kinds of calls that wait.
        interrupted_result
            What an interrupted call returns; 0: it waits on.
        wanted
            An eventfd that a wait is reported on.
        only_counts
            Count the calls and let them pass.
        """
        settings = _Settings(ctypes.addressof(self._word), gated, interrupted_result, wanted, only_counts)
        self._word.value = 0
        self.library.launch_hook_set(ctypes.byref(settings))

    def open_gate(self) -> None:
        """Grant: calls that wait go on, and the next ones pass."""
        self._word.value = 1
        self.library.launch_hook_wake()

    def cancel(self) -> None:
        """End all waits with the result of an interrupted call."""
        self.library.launch_hook_cancel()

    @property
    def waiting(self) -> int:
        """Calls that wait now."""
        return int(self.library.launch_hook_waiting())

    @property
    def missed(self) -> int:
        """Addresses that were handed out for calls of the gated kinds, and that are not gated themselves."""
        return int(self.library.launch_hook_missed())

    def seen(self, kind: int, *, with_lock: bool) -> int:
        """Return how many calls came while the gate was closed, by whether their thread had Python's lock."""
        return int(self.library.launch_hook_seen(kind, int(with_lock)))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls within."""
        self.close_gate(only_counts=True)
        try:
            yield
        finally:
            self.open_gate()
