"""The status document's parts for several hosts: an entry for each, and what is left out of a large one."""

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


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a large cluster that a document leaves out."""

    hosts: int = 0
    devices: int = 0
    lanes: int = 0
    sessions: int = 0
    users: int = 0

    def sentence(self, how: str = "`--about NAME`") -> str:
        """Return what is not shown, and *how* to see it."""
        counts = [f"{getattr(self, name):,} {name}" for name in self.__struct_fields__ if getattr(self, name)]
        return f"Not shown: {', '.join(counts)}. {how} shows those of a host, a device, a user or a notebook."
