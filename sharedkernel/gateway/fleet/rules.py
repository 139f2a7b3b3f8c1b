"""The rules in force on all executors: everybody's quotas and colours, and the policy that ranks sessions.

Executors that are away get them when they are back. All viewers see the same colours on every device: the executors put
them into their status documents. A colour is never the only label of a user.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel.errors import ExecutorUnavailable
from sharedkernel.gateway.config.quotas import Quotas
from sharedkernel.gateway.fleet.executors import Executors
from sharedkernel.protocol import Limits
from sharedkernel.system.state_file import StateFile
from sharedkernel.system.tasks import BackgroundTasks
from sharedkernel.units import format_bytes, parse_bytes

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
#: seconds to wait for executors to confirm a change
_PATIENCE = 5.0
#: most names of former users that are remembered, the newest
_MOST_LEFT = 1_000


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


class FleetRules:
    """Quotas and policy, sent to every executor.

    Parameters
    ----------
    executors
        Get the rules.
    quotas
        What users may use.
    policy
        Name of the policy on every executor; "": each keeps the one it was started with.
    owners
        Return the names of users who have a session.
    colours
        The colours of users, which go with their limits.
    tasks
        Sends changes in the background.
    """

    def __init__(
        self,
        executors: Executors,
        quotas: Quotas,
        policy: str,
        owners: Iterable[Callable[[], set[str]]],
        colours: UserColours,
        tasks: BackgroundTasks,
    ) -> None:
        self._executors = executors
        self.quotas = quotas
        self.policy = policy
        self._owners_of = tuple(owners)
        self.colours = colours
        self._tasks = tasks
        #: who was named in the quotas when they were last sent, and who was once and is no more
        self._named: set[str] = set()
        self._left: list[str] = []

    def users(self) -> set[str]:
        """Return the names of all users who have a session or are named in the quotas."""
        return self.quotas.known_users() | self._owners()

    def present(self) -> set[str]:
        """Return the names of all users who have a session or are in a class: they exist, even without a token."""
        return self.quotas.class_users() | self._owners()

    def _owners(self) -> set[str]:
        return set().union(*(owners() for owners in self._owners_of))

    def limits(self, user: str, device: str) -> Limits:
        """Return the limits of a user with a session, as the executor of *device* needs them.

        Parameters
        ----------
        user
            Name of the user.
        device
            The device, by its name in the configuration.
        """
        return self._limits(user, device, self.colours.choose(user))

    def _limits(self, user: str, device: str, colour: str | None) -> Limits:
        served = self._executors[device].device
        limits = self.quotas.limits(user, None if served is None else served.capacity_bytes)
        return msgspec.structs.replace(limits, colour=colour)

    # --- quotas -------------------------------------------------------------------------------------------------------

    def ineffective(self, entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return a sentence about each limit of memory that is more than any device has, as far as is known.

        It is no fault: a larger device may come.

        Parameters
        ----------
        entries
            Checked limits, by whose they are in words.
        """
        devices = [self._executors[name].device for name in self._executors]
        largest = max((device.capacity_bytes for device in devices if device is not None), default=None)
        memory = {whose: entry.get("memory") for whose, entry in entries.items()}
        return [
            f"a memory limit of {format_bytes(size)} for {whose} limits nothing: the largest device has "
            f"{format_bytes(largest)}."
            for whose, amount in memory.items()
            if largest is not None and amount is not None and (size := parse_bytes(amount, whole=largest)) > largest
        ]

    def replace_quotas(self, quotas: Quotas) -> None:
        """Apply *quotas* from now on, to running sessions too."""
        self.quotas = quotas
        self._tasks.spawn(self.send_all_limits())

    async def send_all_limits(self) -> None:
        """Send everybody's limits to all connected executors.

        Who was named in the quotas when they were last sent, and is no more, gets what holds for all others, and leaves
        the status.
        """
        named = self.quotas.known_users()
        left = sorted(self._named - named)
        former = dict.fromkeys(user for user in [*self._left, *left] if user not in named)
        self._left, self._named = list(former)[-_MOST_LEFT:], named

        async def send(device: str) -> None:
            with contextlib.suppress(ExecutorUnavailable):
                await self._send(device, left)

        await self._do_on(self._executors.connected(), send)

    async def _do_on(self, devices: Collection[str], work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Do something on several devices at once.

        One whose executor hangs keeps neither the others nor the caller waiting: it does it when it goes on.
        """
        tasks = [self._tasks.spawn(work(device)) for device in devices]
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=_PATIENCE)
            for task in done:
                task.result()

    async def send_limits(self, device: str, among: Collection[str] = ()) -> None:
        """Send everybody's limits to the executor of *device*, which may have missed who has left.

        Parameters
        ----------
        device
            By its name in the configuration.
        among
            Users who have sessions there, too: an earlier gateway may have known other limits of theirs.

        Raises
        ------
        SharedKernelError
            When the executor is away, or refuses them.
        """
        self._named |= self.quotas.known_users()
        await self._send(device, self._left, among)

    async def _send(self, device: str, left: Sequence[str], among: Collection[str] = ()) -> None:
        owners = self._owners().union(among)
        limits = [self.limits(user, device) for user in sorted(owners)]
        others = sorted(self.quotas.known_users().union(left) - owners)
        limits += [self._limits(user, device, self.colours.get(user)) for user in others]
        await self._executors[device].configure_users(limits, left=left)

    # --- policy -------------------------------------------------------------------------------------------------------

    async def policies(self) -> dict[str, str]:
        """Return the policy of each device that answers.

        Raises
        ------
        ExecutorUnavailable
            When no executor answers.
        """
        documents = await self._executors.documents()
        if not documents:
            raise self._executors.unavailable()
        return {name: document.device.policy for name, document in documents.items()}

    async def set_policy(self, policy: str) -> None:
        """Apply another policy on all connected executors, each until it ends.

        Raises
        ------
        Refused
            When there is no policy of that name; nothing has changed then.
        ExecutorUnavailable
            When no executor answers.
        """
        devices = self._executors.connected()
        if not devices:
            raise self._executors.unavailable()
        await self._do_on(devices, lambda device: self._executors[device].set_policy(policy))

    def replace_policy(self, policy: str) -> None:
        """Apply *policy* from now on, also on executors that connect later; "": leave each with its own."""
        self.policy = policy
        if policy and self._executors.connected():
            self._tasks.spawn(self.set_policy(policy))
