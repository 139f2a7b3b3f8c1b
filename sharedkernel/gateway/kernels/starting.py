"""Starting sessions: one for a client's place, as many as their user may have, where the placement rule says.

What is being started is no kernel yet, and counts all the same: for its user's number, for the next one to be placed,
and for a client that asks twice. A device whose executor refuses or goes away meanwhile is followed by the next.

Sessions of one notebook count as one less to their user's number where one of them has no client or lingers: that one
is there to be brought back, for which there has to be another to say so in. So a user may have twice their number at
the very most, half of it without a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from jupyter_server._tz import utcnow

from sharedkernel.errors import ExecutorUnavailable, QuotaExceeded, Refused, SharedKernelError

if TYPE_CHECKING:
    from sharedkernel.gateway.kernels.detached import Earlier
    from sharedkernel.gateway.kernels.manager import SessionKernels

log = logging.getLogger(__name__)

#: time since its last activity for which an idle session still counts as in use when a new one is placed
_LATELY = timedelta(minutes=10)


class Starting:
    """Starts sessions, and knows those that are just being started.

    Parameters
    ----------
    kernels
        Where they become kernels.
    """

    def __init__(self, kernels: SessionKernels) -> None:
        self._kernels = kernels
        #: sessions being started, by user and notebook
        self._num: Counter[tuple[str, str | None]] = Counter()
        #: the same by device
        self._num_on: Counter[str] = Counter()
        #: ids of those
        self._ids: set[str] = set()
        #: starts under way that name a client's place, by (user, client key)
        self._places: dict[tuple[str, str], asyncio.Task[str]] = {}

    def has(self, session: str) -> bool:
        """Whether the session of this name is being started, and has no kernel yet."""
        return session in self._ids

    async def start(self, user: str, client_key: str | None, **session: Any) -> str:
        """Start a session and return its kernel id.

        Parameters
        ----------
        user
            Whose it will be.
        client_key
            Names the client's place: the session that is there already is returned. None: it has none.
        session
            What else its kernel has to know.

        Raises
        ------
        SharedKernelError
            When the user has as many sessions as they may, or the executor refuses or is not there.
        """
        start = partial(self._start, user=user, client_key=client_key, **session)
        if client_key is None:
            return await start()
        if (there := self._of_client(user, client_key)) is not None:
            return there
        place = (user, client_key)
        if place not in self._places:
            task = self._places[place] = asyncio.create_task(start())
            task.add_done_callback(lambda _: self._places.pop(place))
        # One client that gives up must not take the session from another that asked for the same.
        return await asyncio.shield(self._places[place])

    def _of_client(self, user: str, client_key: str | None) -> str | None:
        """Return the id of the kernel that *user*'s client has; None if it has none, or does not say who it is."""
        ids = (
            str(kernel.kernel_id)
            for kernel in self._kernels.all()
            if client_key is not None and (kernel.user, kernel.client_key) == (user, client_key)
        )
        return next(ids, None)

    async def _start(self, *, user: str, notebook: str | None, **session: Any) -> str:
        # Counted before anything is awaited, so that requests in parallel cannot slip through together.
        self._num[user, notebook] += 1
        try:
            self._check_number(user)
            await self._end_what_lingers_beyond(user)
            return await self._start_somewhere(user=user, notebook=notebook, **session)
        finally:
            self._num[user, notebook] -= 1
            self._num = +self._num  # or it would keep the name of each notebook that there ever was

    async def _start_somewhere(self, *, user: str, notebook: str | None, **session: Any) -> str:
        """Start a session on the device that the placement rule chooses, or, if it refuses, on the next."""
        refusals: dict[str, SharedKernelError] = {}
        while True:
            try:
                device = await self._kernels.executors.place(
                    user, notebook, count_in_use=self._count_in_use, without=refusals
                )
            except ExecutorUnavailable:
                if refusals:
                    raise next(iter(refusals.values())) from None
                raise
            await self._kernels.adoption.wait_for(device)  # it may have this client's session
            if (there := self._of_client(user, session["client_key"])) is not None:
                return there
            if self._kernels.adoption.is_meeting(device):
                refusals[device] = ExecutorUnavailable(
                    f"{self._kernels.executors.describe([device])} does not say which sessions it has; its log may say "
                    "why, try again."
                )
                continue
            # Without a pause from here: the next one to be placed sees this one.
            try:
                return await self._start_on(device, user=user, notebook=notebook, **session)
            except (Refused, ExecutorUnavailable) as refusal:
                log.info("no session of %s was started%s: %s", user, device and f" on {device}", refusal)
                refusals[device] = refusal

    async def _start_on(self, device: str, *, user: str, **session: Any) -> str:
        kernel_id = str(uuid4())
        self._num_on[device] += 1
        self._ids.add(kernel_id)
        try:
            kernel = self._kernels.make_kernel(kernel_id, user=user, device=device, **session)
            kernel.notice = self._kernels.lingering.describe(kernel)
            await kernel.start_kernel()
            self._kernels.register(kernel)
        except ExecutorUnavailable:
            self._kernels.adoption.abandon(kernel_id, device)
            raise
        finally:
            self._num_on[device] -= 1
            self._ids.discard(kernel_id)
        log.info("kernel %s of %s started%s", kernel_id, user, device and f" on {device}")
        return kernel_id

    def _count_in_use(self, device: str) -> int:
        """Return how many sessions on *device* have work or are likely to have some soon, those starting included."""
        recent = utcnow() - _LATELY
        kernels = [kernel for kernel in self._kernels.all() if kernel.device == device]
        in_use = sum(kernel.execution_state == "busy" or kernel.last_activity > recent for kernel in kernels)
        return in_use + self._num_on[device]

    def _num_of(self, user: str, lingering: Iterable[Earlier] = ()) -> int:
        """Return for how many *user*'s sessions count: kernels, those being started, and *lingering* ones."""
        num: Counter[str | None] = Counter()
        without_client: set[str | None] = set()
        for (owner, notebook), starting in self._num.items():
            num[notebook] += starting * (owner == user)
        for kernel in self._kernels.all():
            num[kernel.notebook] += kernel.user == user
            if kernel.user == user and not kernel.attached:
                without_client.add(kernel.notebook)
        for earlier in lingering:
            num[earlier.notebook] += 1
            without_client.add(earlier.notebook)
        left = sum(notebook is not None and num[notebook] > 1 for notebook in without_client)
        return num.total() - left

    def _check_number(self, user: str) -> None:
        """See that *user* may have what is there and starting.

        Raises
        ------
        QuotaExceeded
            When it is too much.
        """
        allowed = self._kernels.quotas.max_sessions(user)
        if allowed is not None and (there := self._num_of(user) - 1) >= allowed:
            raise QuotaExceeded(
                f"{user} may have {allowed} session{'s' * (allowed != 1)} at a time and has {there}; "
                "shut down one of them (in the panel Shared GPU, or its notebook's Kernel menu), or ask the admin for "
                "more."
            )

    async def _end_what_lingers_beyond(self, user: str) -> None:
        """End lingering sessions of *user*, earliest first, until there are as many as allowed with those starting."""
        allowed = self._kernels.quotas.max_sessions(user)
        if allowed is None:
            return
        for earlier in self._kernels.lingering.of_user(user):
            lingering = self._kernels.lingering.of_user(user)
            num = self._num_of(user, lingering)
            if num <= allowed:
                return
            # The last of a notebook that is just opened counts for nothing, so that nothing would be gained by its end.
            if earlier in lingering and self._num_of(user, [left for left in lingering if left != earlier]) < num:
                log.info("session %s of %s gives way to a new one", earlier.session, user)
                await self._kernels.end_lingering(earlier)
