"""Sessions on a GPU: they train, and beside a training in the same lane programs print what plain torch prints."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from tests.executor.harness import Executor, ExecutorProcess
from tests.gpu.test_lanes import open_group, train

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
#: runs the programs of its argument's JSON, one after the other
PLAIN = """
import json, sys
for code in json.loads(sys.argv[1]):
    exec(code, {})
"""


async def test_programs_print_what_plain_torch_prints(process: ExecutorProcess) -> None:
    """While another session's training takes turns with them, and goes on after them."""
    programs = {what: PREPARE + code for what, code in PROGRAMS.items()}
    command = [sys.executable, "-c", PLAIN, json.dumps([*programs.values()])]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=240)  # noqa: ASYNC221
    assert plain.returncode == 0, plain.stderr
    expected = dict(zip(programs, plain.stdout.splitlines(), strict=True))

    async with Executor(process) as executor:
        busy, notebook = await open_group(executor, "ada", "grace")
        training = asyncio.create_task(busy.run(FOREVER, timeout=500))
        try:
            await executor.until_session(busy, lambda session: session["iterations"] > 3, "the training is under way")
            for what, code in programs.items():
                for _ in range(2):  # the second time in a lane
                    outcome = await notebook.run(code, timeout=120)
                    assert (outcome.status, outcome.text.splitlines()[-1:]) == ("ok", [expected[what]]), (what, outcome)
        finally:
            await executor.client.signal_session(busy.session, signal.SIGINT)
        assert (await training).error == "KeyboardInterrupt"
        outcome = await busy.run("print(len(losses) > 3, wrong)")
        assert outcome.text == "True 0\n"


TRAIN = """
import json, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
inputs, labels = torch.randn(256, 512, device="cuda"), torch.randint(10, (256,), device="cuda")
losses = []
for _ in range(200):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses[0], losses[-1]]))
"""


async def test_a_session_trains_and_its_memory_is_seen(process: ExecutorProcess) -> None:
    """It sees one GPU as cuda:0 although it was forked, all memory has figures, and it lives on when refused."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run("import torch; print(torch.cuda.device_count())")
        assert (outcome.status, outcome.text) == ("ok", "1\n"), outcome
        outcome = await notebook.run(TRAIN)
        assert outcome.status == "ok", outcome
        first, last = json.loads(outcome.text)
        assert last < first
        session = await executor.session(notebook)
        assert session["persistent_bytes"] > 2048 * 512 * 4 * 3
        assert session["ephemeral_bytes"] == 0, "it is at rest"
        assert session["iteration_bytes"] > 0
        assert session["framework_bytes"] > 100 << 20
        assert session["iterations"] > 0
        outcome = await notebook.run("import torch; x = torch.empty(1 << 36, dtype=torch.uint8, device='cuda')")
        assert (outcome.status, outcome.error) == ("error", "OutOfMemoryError"), outcome
        outcome = await notebook.run("print(torch.ones(3, device='cuda').sum().item())")
        assert outcome.text == "3.0\n", outcome


async def test_a_forked_child_collects_no_garbage_of_the_session(process: ExecutorProcess) -> None:
    """Plain torch ends a worker of a DataLoader in which such objects happen to be collected."""
    garbage = """if True:
        import gc, os, torch
        event, tensor, pool = torch.cuda.Event(), torch.ones(1 << 20, device="cuda"), torch.cuda.MemPool()
        pinned = torch.ones(1 << 16).pin_memory()
        event.record()
        tensor.record_stream(torch.cuda.Stream())
        with torch.cuda.use_mem_pool(pool):
            pooled = torch.ones(1 << 20, device="cuda")
        kept = pinned.to("cuda", non_blocking=True)
        gc.disable()
        cycle = [event, tensor, pool, pinned, pooled]
        cycle.append(cycle)
        del cycle, event, tensor, pool, pinned, pooled
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)
        print(os.waitpid(child, 0)[1], gc.collect() > 0)
        gc.enable()
    """

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run(garbage)
        assert outcome.text == "0 True\n", outcome
