"""How many threads torch uses while sessions run side by side: all of them together no more than processors."""

from __future__ import annotations

import torch


class ThreadBound:
    """Bounds the threads of the main thread's operations."""

    def __init__(self) -> None:
        #: bound that came with the last grant; 0: none
        self.granted = 0
        #: what the user had set when the bound took its place; 0: there is no bound
        self._users_own = 0

    def keep(self) -> None:
        """Keep to the threads granted while others run side by side; else leave the user's own setting alone."""
        if self.granted and not self._users_own:
            self._users_own = torch.get_num_threads()
            torch.set_num_threads(min(self.granted, self._users_own))
        elif self._users_own and not self.granted:
            torch.set_num_threads(self._users_own)
            self._users_own = 0
