"""Where iterations end, learned in real sessions from code that says nothing about it."""

from __future__ import annotations

import asyncio

import pytest

from tests.executor.harness import Executor, ExecutorProcess, until

PREPARE = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
data = TensorDataset(torch.randn(512, 64), torch.randn(512, 64))
loader = DataLoader(data, batch_size=32)
inputs, targets = data.tensors
boundaries = sys.modules['sharedkernel.session.kernel.app'].boundaries
"""
LEARNED = "boundaries._kind"
#: passes of a boundary after it was learned, in loops where that takes time
PASSES = 20

TRAINING = """
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""
#: it stands still for long at first, as on a busy machine, so that loops are looked at, of which one passes more often
LATE_GAN = """
generator, critic = nn.Linear(64, 64), nn.Linear(64, 1)
optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (generator, critic)]
for step in range(20):
    for optimizer in optimizers:
        if step < 2:
            time.sleep(0.3)
        optimizer.zero_grad()
        critic(generator(inputs)).mean().backward()
        optimizer.step()
"""
INFERENCE = """
with torch.no_grad():
    for _ in range(3):
        for x, y in loader:
            model(x)
"""
BARE_LOOP = f"""
a, passes = torch.randn(256, 256), 0
while passes < {PASSES}:
    a = torch.tanh(a @ a)
    passes += bool(boundaries._kind)
"""
FOREIGN_LOOP = f"""
namespace = {{}}
exec('''
def infer(model, inputs):
    passes = 0
    while passes < {PASSES}:
        model(inputs)
        passes += bool(boundaries._kind)
''', globals(), namespace)
with torch.no_grad():
    namespace["infer"](model, inputs)
"""
EXPORT = """
import copy
from torch.utils.checkpoint import checkpoint
exported = torch.export.export(model, (inputs,), strict=True).module()
outputs = exported(inputs), checkpoint(copy.deepcopy(model), inputs, use_reentrant=False)
[torch.allclose(output, model(inputs)) for output in outputs]
"""


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (TRAINING, "zero_grad"),
        (LATE_GAN, "zero_grad"),
        (INFERENCE, "dataloader"),
        (BARE_LOOP, "loop"),
    ],
    ids=["training", "late-gan", "inference", "bare-loop"],
)
async def test_the_boundary_is_learned(process: ExecutorProcess, code: str, kind: str) -> None:
    """Each kind of loop gets the boundary it should, and its iterations are counted."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run(PREPARE + code + LEARNED)
        assert outcome.text == repr(kind), outcome.message
        assert (await executor.session(notebook))["iterations"] >= 10


async def test_a_model_is_exported_whose_forwards_were_the_boundary(process: ExecutorProcess) -> None:
    """Dynamo captures no module beside hooks on all of them, so there are none by then; a copy computes the same."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run(PREPARE + FOREIGN_LOOP + LEARNED)
        assert outcome.text == "'forward'", outcome.message
        assert (await executor.session(notebook))["iterations"] >= 10
        outcome = await notebook.run(EXPORT)
        assert outcome.text == "[True, True]", outcome.message


async def test_plain_python_after_device_work_lets_the_device_go(process: ExecutorProcess) -> None:
    """A cell that used the device once and computes on in Python gives the grant back though nobody asks."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        code = "import torch, time; x = torch.ones(3)\nend = time.monotonic() + 100\nn = 0\n"
        cell = asyncio.create_task(notebook.run(code + "while time.monotonic() < end: n = max(n, 1) + 1"))

        async def let_go() -> bool:
            assert not cell.done(), cell.result()
            session = await executor.session(notebook)
            return session["attained_service_seconds"] > 0 and session["state"] == "ready"

        await until(let_go, "the grant is given back")
        assert not cell.done()
        await executor.client.signal_session(notebook.session, 2)
        assert (await cell).error == "KeyboardInterrupt"
