"""The bound on torch's threads while sessions run side by side, and the making of these threads."""

from __future__ import annotations

import ctypes
import resource

import torch

from sharedkernel.session.memory.host_meter import unlimited_rlimit

#: what each of OpenMP's threads runs when they are made: a C function that needs nothing and ignores its arguments
_NOTHING = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)


class ThreadBound:
    """Bounds the threads of the main thread's operations.

    While sessions run side by side, all of them together have no more threads than there are processors. The threads
    are made while there is room for their stacks: GNU's OpenMP ends the process where it cannot make one, as under a
    limit on private memory that a tensor has just reached.
    """

    def __init__(self) -> None:
        #: bound that came with the last grant; 0: none
        self.granted = 0
        #: what the user had set when the bound took its place; 0: there is no bound
        self._users_own = 0
        self._are_made = False

    def keep(self) -> None:
        """Keep to the threads granted while others run side by side; else leave the user's own setting alone."""
        if self.granted and not self._users_own:
            self._users_own = torch.get_num_threads()
            torch.set_num_threads(min(self.granted, self._users_own))
        elif self._users_own and not self.granted:
            torch.set_num_threads(self._users_own)
            self._users_own = 0

    @property
    def is_due(self) -> bool:
        """Whether memory is limited, so that OpenMP may fail to make a thread, and :meth:`make` was not called."""
        return not self._are_made and resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY

    def make(self) -> None:
        """Have OpenMP make the main thread's threads now (milliseconds).

        Not before others have most of the memory: a process forked later has none of these threads, and would wait for
        them for ever (:meth:`forget_in_child`).
        """
        self._are_made = True
        parallel = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
        if parallel is not None:
            with unlimited_rlimit():
                parallel(_NOTHING, None, ctypes.c_uint(torch.get_num_threads()), ctypes.c_uint(0))

    def forget_in_child(self) -> None:
        """Compute in one thread: a forked child has none of those that were made."""
        if self._are_made:
            torch.set_num_threads(1)
