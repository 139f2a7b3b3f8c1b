"""Offloading and restoring a session's device memory, against copies between the GPU and pinned memory."""

from __future__ import annotations

import asyncio
import urllib.request
from contextlib import AsyncExitStack

from common import GIB, Bench, main, sessions

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import BenchmarkFailed, Result, Target, brief
from sharedkernel.local_stack import LocalStack

#: how fast copies to pinned memory and back are, in bytes per second
_LIMIT = """
host = torch.empty({size}, dtype=torch.uint8, pin_memory=True)
there = torch.empty({size}, dtype=torch.uint8, device=device)
def speed(target, source):
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(4):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return 4 * target.numel() / (time.perf_counter() - begun)
speeds = [speed(host, there), speed(there, host)]
del host, there
print(json.dumps(speeds))
"""


async def measure(bench: Bench) -> None:
    """Offload by request, restore by the next cell, and compare with the copy's speed."""
    size = GIB // 4 if bench.software else (4 if bench.quick else 16) * GIB
    with bench.stack() as stack:
        async with AsyncExitStack() as contexts:
            (notebook,) = await bench.open(contexts, sessions(stack))
            out, back = await notebook.value(_LIMIT.format(size=min(size, GIB)))
            code = f"kept = [torch.full(({size // 64},), n, dtype=torch.uint8, device=device) for n in range(64)]"
            await notebook.run(f"torch.cuda.empty_cache()\n{code}")
            for turn in range(3):
                bench.say(f"turn {turn + 1} of 3")
                await _offload(stack, notebook)
                same = await notebook.value("print(json.dumps(all(int(t[n]) == n for n, t in enumerate(kept))))")
                if not same:
                    raise BenchmarkFailed("what came back is not what was offloaded.")
            status = await asyncio.to_thread(stack.status)
    (session,) = status.sessions
    if session.offloads < 3 or session.restores < 3:
        raise BenchmarkFailed(f"the session was not offloaded: {session.offload_note}")
    for metric, turns, total, limit in (
        ("offload", session.offloads, session.offload_seconds, out),
        ("restore", session.restores, session.restore_seconds, back),
    ):
        seconds = total / turns
        bench.add(
            Result(
                metric=metric,
                value=size / seconds / limit,
                unit="ratio",
                target=Target(">=", 0.7),
                how=f"{size / GIB:g} GiB in {brief(seconds)} ({size / seconds / 1e9:.3g} GB/s, mean of {turns}), where "
                f"copies to and from pinned memory reach {limit / 1e9:.3g} GB/s.",
            )
        )


async def _offload(stack: LocalStack, notebook: Notebook) -> None:
    url = f"{stack.gateway_url}/sharedkernel/api/sessions/{notebook.kernel_id}/offload"
    headers = {"Authorization": f"token {stack.token(stack.users[0])}"}
    request = urllib.request.Request(url, data=b"", headers=headers, method="POST")
    try:
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=300).close())
    except OSError as error:
        raise BenchmarkFailed(f"the session was not offloaded: {error}") from None


if __name__ == "__main__":
    main("offload", measure)
