"""A session's process that ends is replaced at once, but not without end."""

from __future__ import annotations

import pytest
from jupyter_client.manager import AsyncKernelManager

from sharedkernel.gateway.kernels.manager import SessionRestarter


class Kernel(AsyncKernelManager):
    """What a restarter needs of a kernel whose processes all end at once."""

    restarts = 0

    async def is_alive(self) -> bool:  # type: ignore[override]
        return False

    async def restart_kernel(self, **_: bool) -> None:  # type: ignore[override]
        self.restarts += 1


@pytest.mark.parametrize(("stable", "restarts", "deaths"), [(1000.0, 5, 1), (0.0, 8, 0)])
async def test_a_process_that_keeps_ending_is_given_up(stable: float, restarts: int, deaths: int) -> None:
    """Unless each has lived long enough: those are counted anew."""
    kernel, given_up = Kernel(), []
    restarter = SessionRestarter(kernel_manager=kernel, stable_start_time=stable)
    restarter.add_callback(lambda: given_up.append(1), "dead")
    for _ in range(restarts + deaths):
        await restarter.poll()
    assert (kernel.restarts, len(given_up)) == (restarts, deaths)
