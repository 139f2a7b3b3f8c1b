"""OpenMP's threads where private memory is limited, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: a tensor takes all but 2 MiB of what is allowed; a thread's stack takes 8
TIGHT = """
import os, resource, torch
from sharedkernel.session.gate.torch_internals import ThreadBound
torch.set_num_threads(4)

def limit(size):
    data = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + size, resource.RLIM_INFINITY))

bound = ThreadBound()
"""
COMPUTE = """
limit((384 << 20) + (2 << 20))
print(torch.arange(48 << 20).sum().item())
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", TIGHT + code], capture_output=True, text=True, timeout=60)


@pytest.mark.heavy
def test_threads_are_made_while_there_is_room() -> None:
    """A tensor that then takes all memory that is allowed does not end the process."""
    without = run(COMPUTE)
    if without.returncode != 1 or "libgomp" not in without.stderr:
        pytest.skip("this OpenMP does not end processes")
    made = run("limit(1 << 20)\nbound.make()\n" + COMPUTE)
    assert (made.returncode, made.stdout) == (0, f"{(48 << 20) * ((48 << 20) - 1) // 2}\n"), made.stderr


@pytest.mark.heavy
def test_a_forked_child_does_not_wait_for_threads_that_it_has_not_got() -> None:
    """It computes in one, whether its parent had computed or not.

    Without a limit none are needed: what is forked then may compute as in a stock kernel.
    """
    ended = run("""
print(bound.is_due)
limit(1 << 30)
print(bound.is_due)
bound.make()
print(bound.is_due, flush=True)
child = os.fork()
if not child:
    bound.forget_in_child()
    print(torch.ones(1 << 20).add_(1).sum().item(), torch.get_num_threads(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(torch.get_num_threads())
""")
    assert (ended.returncode, ended.stdout) == (0, f"False\nTrue\nFalse\n{2.0 * (1 << 20)} 1\n4\n"), ended.stderr
