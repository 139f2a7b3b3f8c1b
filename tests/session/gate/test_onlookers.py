"""Tracers, profilers, compilers and tracebacks show in a session what they show in a stock kernel."""

from __future__ import annotations

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from tests.session.harness import GIB, SessionUnderTest, run_on_both

MIB = 1 << 20

PREPARE = """
import io, logging, warnings
import torch, torch._dynamo
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(144, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.convolution(x)))
        x = x.view(x.size(0), -1)
        return self.head(x + torch.zeros(x.shape[1]))

torch.manual_seed(0)
torch._dynamo.reset()
torch._dynamo.utils.counters.clear()
net, x = Net().eval(), torch.randn(2, 3, 8, 8)

def show_trace():
    traced = torch.jit.trace(net, x)
    print([node.kind() for node in traced.inlined_graph.nodes()], torch.equal(traced(x), net(x)))

def show_profile(**options):
    with torch.profiler.profile(**options) as profile:
        net(x).sum().item()
    print(sorted((event.key, event.count) for event in profile.key_averages()))

def stats():
    return dict(torch._dynamo.utils.counters["stats"])
"""

#: cells; in each, what is looked at begins without a grant, or with one that an operation took just before
CELLS = {
    "trace_later": "net(x)\nshow_trace()\nprint(modes())",
    "profile_later": "net(x)\nshow_profile(record_shapes=True)\nprint(modes())",
    "compile_with_breaks": (
        "@torch.compile(backend='eager')\n"
        "def broken(x):\n"
        "    x = x.sin()\n"
        "    torch._dynamo.graph_break()\n"
        "    print(modes(), torch.ones(2).sum().item())\n"
        "    return net(x.cos()) + 1\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    for count in range(1, 4): broken(x[:, :count].repeat(1, 3, 1, 1)[:, :3])\n"
        "print(stats(), [str(warning.message) for warning in caught])"
    ),
    "compile_a_training_step": (
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "@torch.compile(backend='eager')\n"
        "def step():\n"
        "    optimizer.zero_grad()\n"
        "    net(x).sum().backward()\n"
        "    optimizer.step()\n"
        "for _ in range(4): step()\n"
        "print(stats())"
    ),
    "export_strictly": "print(len(torch.export.export(net, (x,), strict=True).graph.nodes))",
    "first_operation": "y = torch.ones(2)\nprint(modes())\nz = y + y\nprint(modes())",
    "no_call_between": "y = x + x; z = y * y; print(modes())",
    "error_in_a_module": "def apply():\n    return net(torch.ones(2, 3, 9, 9))\napply()",
    "error_that_is_caught": (
        "try: torch.ones(2) @ x\nexcept RuntimeError as error:\n    print(error.__cause__)\n    raise"
    ),
}

#: cells that look at the mode without any onlooker
OF_AMPLE_MEMORY = ("first_operation", "no_call_between")


@pytest.mark.heavy
@pytest.mark.parametrize("name", CELLS)
def test_it_is_as_in_a_stock_kernel(session: SessionUnderTest, stock: BlockingKernelClient, name: str) -> None:
    """The same cell prints the same, ends alike, and shows the same traceback.

    Memory is so scarce that the mode stays in, but where it has to leave by itself.
    """
    session.limit(64 * GIB if name in OF_AMPLE_MEMORY else 512 * MIB)
    run_on_both(session, stock, PREPARE)
    here, there = run_on_both(session, stock, CELLS[name])
    assert here == there
