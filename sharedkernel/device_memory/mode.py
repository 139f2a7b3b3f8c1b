"""The three ways in which sessions have device memory on a GPU: shared lanes, memory of their own, plain torch.

Each needs less of the driver and of torch than the one before. An executor uses the first one of which its self-test
(:mod:`sharedkernel.selftest`) found that it works on the card.
"""

from __future__ import annotations

from enum import StrEnum


class DeviceMemoryMode(StrEnum):
    """The ways in which sessions on a GPU get device memory."""

    #: sessions share lanes' bytes by turns; all of torch's memory comes by page from the executor
    SHARED = "shared"
    #: torch's own allocator; what an iteration no longer needs is freed when the device is given back, and idle
    #: notebooks' tensors are offloaded storage by storage
    PRIVATE = "private"
    #: public functions of torch alone: a limit on its allocator, and turns; memory is never offloaded
    PLAIN = "plain"

    @property
    def meaning(self) -> str:
        """The features that sessions lack, as the end of a sentence; empty for the first mode."""
        return _MEANINGS[self]


_MEANINGS = {
    DeviceMemoryMode.SHARED: "",
    DeviceMemoryMode.PRIVATE: "sessions' ephemeral memory is their own, and given back at a switch",
    DeviceMemoryMode.PLAIN: "sessions use plain torch with a memory limit and turns, and their memory never moves out",
}
