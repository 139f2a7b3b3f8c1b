"""The entry of a host in the status document of several hosts, and short text about it."""

from __future__ import annotations

import msgspec


class HostEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One of several hosts."""

    name: str
    #: whether it answers (None: nobody was asked), and why not
    answering: bool | None = None
    message: str | None = None
    #: None: not known, as all below
    version: str | None = None
    num_devices: int = 0
    num_sessions: int | None = None
    #: whether it starts no new sessions, and nobody has anything there any more
    cordoned: bool | None = None
    drained: bool | None = None
    #: whether its agent is in touch with a Ray cluster, and found its services running rather than starting them
    in_ray: bool | None = None
    adopted: bool | None = None

    def state_words(self) -> str:
        """Return whether it answers, and how far it is drained."""
        answers = {True: "answers", False: "away", None: "-"}[self.answering]
        if self.drained:
            return f"{answers}, drained"
        return f"{answers}, draining" if self.cordoned else answers

    def ray_words(self) -> str:
        """Return whether it is in Ray, and whether its agent started its services or adopted them."""
        if self.in_ray is None:
            return "-"
        how = {True: ", adopted", False: ", started", None: ""}[self.adopted]
        return f"{'in Ray' if self.in_ray else 'not in Ray'}{how}"
