"""The colour of each user, chosen at their first session and kept in a file for the gateway's next start.

All viewers see the same colours on every device: the executors put them into their status documents. A colour is never
the only label of a user.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from sharedkernel.system.state_file import StateFile

#: Each has a contrast of at least 3 to 1 against white and against the dark theme's background. The first ones differ
#: the most: few users have only those.
COLOURS = [
    "#4a75b4", "#e96326", "#4da424", "#b0378b", "#7f652e", "#ae6fe8", "#a78894", "#0fa196", "#227727", "#a69239",
    "#b24745", "#e5598e", "#6887ff", "#147174", "#805983", "#7751cb", "#728771", "#7992c4", "#b26d3b", "#b26385",
    "#8a70b8", "#315fcf", "#728431", "#c170bb", "#9e49b7", "#8b6c69", "#1a95d8", "#cd7671", "#438ba2", "#108968",
    "#607086", "#579f68", "#cc3e6a", "#665da4", "#566955", "#de4e4e", "#846eea", "#058d1d", "#cb7e19", "#9b4b66",
    "#9b532a", "#cb51a4", "#317de9", "#5c6c14", "#9c9277", "#867a94", "#937e45", "#9e86b9", "#829821", "#6b76d2",
]  # fmt: skip

#: most users that are remembered, the last ones seen
_MOST_USERS = 10_000


class UserColours:
    """The colours of users, next free ones first; users beyond the number of colours share them.

    Parameters
    ----------
    path
        The file that keeps them.
    """

    def __init__(self, path: Path) -> None:
        loss = "The colours of users may change when the gateway restarts."
        self._file = StateFile(path, dict[str, str], loss=loss, durable=False)
        #: by user, the one seen last at the end
        self._colours = {user: colour for user, colour in (self._file.read() or {}).items() if colour in COLOURS}

    def get(self, user: str) -> str | None:
        """Return the colour of *user*; None before their first session."""
        return self._colours.get(user)

    def choose(self, user: str, preferred: str | None = None) -> str:
        """Return the colour of *user*, who has a session; at first sight, choose it.

        Parameters
        ----------
        user
            Name of the user.
        preferred
            The colour for a new user, if no other user has it.
        """
        if (known := self._colours.pop(user, None)) is not None:
            self._colours[user] = known
            return known
        num_users = Counter(self._colours.values())
        is_free = preferred in COLOURS and not num_users[preferred]
        chosen = preferred if preferred and is_free else min(COLOURS, key=num_users.__getitem__)
        self._colours[user] = chosen
        while len(self._colours) > _MOST_USERS:
            del self._colours[next(iter(self._colours))]
        self._file.write(self._colours)
        return chosen
