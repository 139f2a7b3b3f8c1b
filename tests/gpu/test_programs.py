"""Programs that use CUDA in many ways, beside a training in the same lane: they print what plain torch prints."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sharedkernel.system.nvml import Gpu
from tests.executor.harness import Executor, ExecutorProcess, until
from tests.gpu.test_lanes import CAPACITY, open_group, train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PREPARE = """
import json, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
losses = []

def learn(inputs, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""

#: cells that print JSON, by what they use
PROGRAMS = {
    "a data loader's workers and pinned memory": """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(256, 64), torch.randint(10, (256,)))
for _ in range(3):
    for inputs, labels in DataLoader(data, batch_size=32, num_workers=2, pin_memory=True):
        assert inputs.is_pinned()
        learn(inputs.cuda(non_blocking=True), labels.cuda(non_blocking=True))
print(json.dumps(losses))
""",
    "mixed precision with a gradient scaler": """
inputs, labels = torch.randn(64, 64).cuda(), torch.randint(10, (64,)).cuda()
scaler = torch.amp.GradScaler("cuda")
for _ in range(30):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
print(json.dumps([losses, scaler.get_scale()]))
""",
    "a side stream that fetches the next batch": """
side, batches = torch.cuda.Stream(), [torch.randn(512, 64).pin_memory() for _ in range(8)]
labels = torch.randint(10, (512,)).cuda()

def fetch(number):
    with torch.cuda.stream(side):
        return batches[number % 8].to("cuda", non_blocking=True)

coming = fetch(0)
for number in range(1, 60):
    torch.cuda.current_stream().wait_stream(side)
    inputs = coming
    inputs.record_stream(torch.cuda.current_stream())
    coming = fetch(number)
    learn(inputs, labels)
print(json.dumps(losses))
""",
    "a memory pool of its own": """
inputs, labels = torch.randn(64, 64).cuda(), torch.randint(10, (64,)).cuda()
sums = []
for number in range(20):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        own = torch.full((1 << 20,), number, device="cuda")
    learn(inputs, labels)
    sums.append(own.sum().item())
    del own, pool
print(json.dumps([losses, sums]))
""",
    "a captured graph": """
source, target = torch.zeros(1 << 16, device="cuda"), torch.zeros(1 << 16, device="cuda")
graph = torch.cuda.CUDAGraph()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    target.copy_(source)
torch.cuda.current_stream().wait_stream(side)
with torch.cuda.graph(graph):
    target.copy_(source)
inputs, labels = torch.randn(64, 64).cuda(), torch.randint(10, (64,)).cuda()
sums = []
for number in range(20):
    source.fill_(number)
    graph.replay()
    learn(inputs, labels)
    sums.append(target.sum().item())
print(json.dumps([losses, sums]))
""",
    "a compiled model whose backend is not there": """
import torch._dynamo
torch._dynamo.config.suppress_errors = True
import logging
logging.disable()
compiled = torch.compile(model)
inputs, labels = torch.randn(64, 64).cuda(), torch.randint(10, (64,)).cuda()
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(compiled(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
""",
    "threads of the user's": """
from concurrent.futures import ThreadPoolExecutor
parts = [torch.randn(256, 256) for _ in range(8)]
with ThreadPoolExecutor(4) as threads:
    norms = list(threads.map(lambda part: (part.cuda() @ part.cuda().T).diagonal().sum().item(), parts))
print(json.dumps(norms))
""",
}

FOREVER = train(8).replace("while time.monotonic() < end:", "while True:")


@pytest.fixture(scope="module")
def process(gpu: Gpu) -> Iterator[ExecutorProcess]:
    """Yield an executor of one lane, whose bytes are checked and poisoned at each hand-over."""
    options = ("--device", "cuda:0", "--parallel-lanes", "1", "--check-lanes")
    process = ExecutorProcess(*options, capacity=str(min(CAPACITY, gpu.facts.total_bytes)))
    yield process
    process.close()


@pytest.mark.parametrize("what", PROGRAMS)
async def test_a_program_prints_what_plain_torch_prints(process: ExecutorProcess, what: str) -> None:
    """While another session's training takes turns with it, and goes on after it."""
    code = PREPARE + PROGRAMS[what]
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)  # noqa: ASYNC221
    assert plain.returncode == 0, plain.stderr
    expected = json.loads(plain.stdout.splitlines()[-1])

    async with Executor(process) as executor:
        busy, notebook = await open_group(executor, "ada", "grace")
        training = asyncio.create_task(busy.run(FOREVER, timeout=240))

        async def is_under_way() -> bool:
            return bool((await executor.session(busy))["iterations"] > 3)

        try:
            await until(is_under_way, "the training is under way")
            for _ in range(2):  # the second time in a lane
                outcome = await notebook.run(code, timeout=120)
                assert outcome.status == "ok", outcome
                assert json.loads(outcome.text.splitlines()[-1]) == expected
        finally:
            await executor.client.signal_session(busy.session, signal.SIGINT)
        assert (await training).error == "KeyboardInterrupt"
        outcome = await busy.run("print(len(losses) > 3, wrong)")
        assert outcome.text == "True 0\n"
