"""Functions and classes with loops, written in a cell, are what the user wrote: for compilers and other processes."""

from __future__ import annotations

from tests.session.harness import SessionUnderTest

#: a function and a model, each with loops that call something and multiply matrices
DEFINITIONS = """
import inspect, torch
def power(x, n):
    for i in range(n):
        x = x @ x
        while abs(i) < 0: x = abs(x)
    return x
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            for _ in range(2):
                x = torch.relu(layer(x))
        return x
model, x = Model().eval(), torch.rand(4, 4)
"""


def test_it_is_what_the_user_wrote(session: SessionUnderTest) -> None:
    """What shows code shows nothing of ours, and nothing in it breaks a graph, within a loop of the cell either."""
    session.run(DEFINITIONS)
    reply = session.run("print(inspect.getsource(power), power.__code__.co_names, Model.forward.__code__.co_names)")
    assert "def power(x, n):\n    for i in range(n):\n        x = x @ x\n" in reply["text"]
    assert "__sharedkernel" not in reply["text"]
    for program in (
        "torch.compile(model, fullgraph=True, backend='aot_eager')",
        "torch.export.export(model, (x,), strict=True).module()",
    ):
        reply = session.run(f"for _ in range(1): print(torch.allclose({program}(x), model(x)))")
        assert (reply["status"], reply["text"]) == ("ok", "True\n"), reply
