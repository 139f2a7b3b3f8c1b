"""What torch's own tools make of code in a notebook: the same as on a stock kernel."""

from __future__ import annotations

import shutil

import pytest

from tests.unmodified.support import Pair

_NETWORK = """
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
            self.layers = nn.ModuleList(nn.Linear(size, 16) for size in (36, 16))

        def forward(self, images):
            hidden = self.features(images)
            hidden = hidden.view(hidden.size(0), -1)
            for layer in self.layers:
                hidden = torch.relu(layer(hidden))
            return hidden

    network = Network().eval()
    images = torch.randn(2, 1, 8, 8)
"""


def test_what_looks_at_a_network(pair: Pair) -> None:
    """The profiler, TorchScript, export, make_fx and a user's own dispatch mode see what they see on a stock kernel.

    Each operation is listed under its own name, as often as there; nothing is added where the device is asked for
    within the profile, by a cell's first operation. Traced graphs compute the same, and code with loops compiles. The
    exported program is the same, also where Dynamo reads the source (strict).
    """
    printed = pair.check(
        _NETWORK,
        """
        with torch.autograd.profiler.profile() as profiler:
            for _ in range(3):
                (images + 1).sum()
        print(sorted((event.key, event.count) for event in profiler.key_averages()))
        """,
        """
        from torch.profiler import ProfilerActivity, profile, record_function

        network(images)
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            with record_function("a training step"):
                network(images).sum().backward()
        counts = {event.key: event.count for event in profiler.key_averages()}
        for name in sorted(counts):
            print(name, counts[name])
        """,
        """
        @torch.jit.script
        def total(values: torch.Tensor, count: int) -> torch.Tensor:
            result = torch.zeros(())
            for index in range(count):
                result = result + values[index]
            return result

        print(total(torch.arange(5.0), 4).item())
        """,
        """
        traced = torch.jit.trace(network, images)
        print([node.kind() for node in traced.inlined_graph.nodes()])
        print(torch.equal(traced(images), network(images)))
        """,
        """
        traced.save("network.pt")
        print(torch.equal(torch.jit.load("network.pt")(images), network(images)))
        """,
        """
        for strict in (False, True):
            program = torch.export.export(network, (images,), strict=strict)
            print([str(node.target) for node in program.graph.nodes])
            print(torch.equal(program.module()(images), network(images)))
        """,
        """
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import FlopCounterMode

        class Log(TorchDispatchMode):
            def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
                print(operation)
                return operation(*arguments, **(keywords or {}))

        with Log():
            network(images)
        print(make_fx(lambda values: values.sin() + 1)(images).code)
        """,
        """
        with FlopCounterMode(display=False) as counter:
            network(images)
        print(counter.get_total_flops())
        """,
    )
    assert int(printed) > 0


_COUNTED = """
    import torch._dynamo
    from torch._dynamo.utils import counters

    graphs = []

    def counting(graph, examples):
        graphs.append([node.target if node.op == "call_method" else node.op for node in graph.graph.nodes])
        return graph.forward
"""


def test_compile(pair: Pair) -> None:
    """A model whose forward has a loop is one graph, in training too; breaks make no more graphs than elsewhere."""
    printed = pair.check(
        _NETWORK,
        _COUNTED,
        """
        compiled = torch.compile(network, backend=counting, fullgraph=True)
        compiled(images).sum().backward()
        print(len(graphs), graphs)
        """,
        """
        for size in (2, 2, 3):
            compiled(torch.randn(size, 1, 8, 8))
        print(len(graphs), dict(counters["graph_break"]), counters["stats"]["unique_graphs"])
        """,
        """
        @torch.compile(backend=counting)
        def step(values):
            values = values * 2
            print("between two graphs")
            for _ in range(3):
                values = values + 1
            torch._dynamo.graph_break()
            return values.relu()

        for _ in range(12):
            step(torch.ones(3))
        print(len(graphs), graphs, counters["stats"]["unique_graphs"])
        """,
    )
    assert "between two graphs" in printed


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compile_by_inductor(pair: Pair) -> None:
    """The usual backend compiles and computes the same, forward and backward."""
    printed = pair.check(
        """
        import torch

        @torch.compile(fullgraph=True)
        def total(values):
            for _ in range(3):
                values = values.sin() + 1
            return values.square().mean()

        values = torch.linspace(0, 1, 64, requires_grad=True)
        loss = total(values)
        loss.backward()
        print(loss.item(), values.grad.norm().item())
        """,
    )
    assert float(printed.split()[0]) > 0
