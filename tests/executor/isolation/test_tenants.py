"""What one user's session tries against all others, where the operating system keeps users apart."""

from __future__ import annotations

import asyncio

import psutil

from tests.executor.isolation import ADA, GRACE, ApartExecutor, Executor, needs_root
from tests.processes import open_files

pytestmark = needs_root

#: makes the ends of another process's pipes blocking and fills them; prints how many it has
_FILL_PIPES = """if True:
    import os
    ends = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{{name}}") in {pipes!r}:
                ends.append(int(name))
        except OSError:
            pass
    for end in ends:
        try:
            os.set_blocking(end, False)
            while True:
                os.write(end, bytes(4096))
        except OSError:
            pass
    for end in ends:
        os.set_blocking(end, True)
    print(len(ends))
"""


def test_a_cell_cannot_stop_the_starts_of_others(apart: ApartExecutor) -> None:
    """A session has no end of the pipe that wakes its parent, which it could fill so that the parent waits for ever."""

    async def main() -> None:
        async with Executor(apart) as executor:
            ada = await executor.notebook(ADA)
            parent = psutil.Process(ada.record.pid).ppid()
            pipes = sorted(name for name in open_files(parent).values() if name.startswith("pipe:"))
            assert pipes
            assert (await ada.run(_FILL_PIPES.format(pipes=pipes))).text.strip() == "0"
            for _ in range(3):  # more than there are spares, and each end of a process wakes the parent
                grace = await executor.notebook(GRACE)
                assert (await grace.run("6 * 7")).text == "42"
                await executor.client.end_session(grace.session)

    asyncio.run(main())
