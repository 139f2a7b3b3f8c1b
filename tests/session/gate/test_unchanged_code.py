"""Functions and classes with loops, written in a cell, are what the user wrote: for compilers and other processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.session.harness import SessionUnderTest

#: a function and a model, each with loops that call something and multiply matrices
DEFINITIONS = """
import base64, cloudpickle, inspect, pickle, subprocess, sys, torch
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
#: what a process does that has never heard of sharedkernel
ELSEWHERE = """
import base64, pickle, sys
call = pickle.loads(base64.b64decode(sys.stdin.read()))
assert "sharedkernel" not in sys.modules
print(call())
"""


@pytest.fixture(scope="module")
def session() -> Iterator[SessionUnderTest]:
    with SessionUnderTest() as session:
        reply = session.run(DEFINITIONS)
        assert reply["status"] == "ok", reply
        session.run(f"elsewhere = {ELSEWHERE!r}")
        yield session


@pytest.mark.parametrize(
    "call",
    [
        "lambda: power(torch.eye(2), 3).sum().item()",
        "lambda: len(model(x))",
    ],
    ids=["function", "model"],
)
def test_another_process_can_run_it(session: SessionUnderTest, call: str) -> None:
    """As `joblib`, `dask` and others do that send functions by value."""
    run = f"for _ in range(1):\n    data = base64.b64encode(cloudpickle.dumps({call}))\n    expected = ({call})()\n"
    run += (
        "done = subprocess.run([sys.executable, '-c', elsewhere], input=data, capture_output=True)\n"
        "print(done.stdout.decode().strip() == str(expected) or done.stderr.decode())"
    )
    reply = session.run(run)
    assert (reply["status"], reply["text"]) == ("ok", "True\n"), reply


def test_its_source_and_its_names_are_the_users(session: SessionUnderTest) -> None:
    """What shows code shows nothing of ours."""
    reply = session.run("print(inspect.getsource(power), power.__code__.co_names, Model.forward.__code__.co_names)")
    assert "def power(x, n):\n    for i in range(n):\n        x = x @ x\n" in reply["text"]
    assert "__sharedkernel" not in reply["text"]


@pytest.mark.parametrize(
    "code",
    [
        "torch.compile(model, fullgraph=True, backend='aot_eager')(x), model(x)",
        "torch.export.export(model, (x,), strict=True).module()(x), model(x)",
    ],
    ids=["model", "export"],
)
def test_it_compiles_as_a_whole(session: SessionUnderTest, code: str) -> None:
    """Nothing in it breaks a graph, within a loop of the cell either."""
    reply = session.run(f"for _ in range(1): print(torch.allclose(*({code})))")
    assert (reply["status"], reply["text"]) == ("ok", "True\n"), reply
