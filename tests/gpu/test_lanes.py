"""Sessions that share a lane's bytes on a GPU, and what does not fit there: real processes and clients."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from sharedkernel.protocol import Limits
from tests.executor.harness import Executor, ExecutorProcess, Notebook
from tests.status.documents import to_json

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MIB = 1 << 20

#: trains for SECONDS; prints its passes, how many values changed that should not, and its losses next to the CPU's
TRAIN = """
import json, threading, time, torch
torch.set_num_threads(1)

def make(device):
    torch.manual_seed(SEED)  # the same on the CPU
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).to(device)
    # many a library asks for the current thread in backward's
    model[0].weight.register_hook(lambda gradient: print(end=threading.current_thread().name[:0]))
    return model, torch.optim.Adam(model.parameters()), torch.randn(64, 256).to(device)

def step(model, optimizer, inputs):
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = outputs.square().mean()
    loss.backward()
    optimizer.step()
    return outputs.detach(), loss.item()

mine, wrong, losses = make("cuda"), 0, []
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    kept, loss = step(*mine)
    copy = kept.cpu()
    losses.append(loss)
    wrong += not torch.equal(kept.cpu(), copy)
reference = make("cpu")
expected = [step(*reference)[1] for _ in losses[:5]]
difference = max(abs(a - b) / abs(b) for a, b in zip(losses, expected))
print(json.dumps([len(losses), wrong, difference]))
"""

#: prints whether the session has a lane now
HAS_LANE = """
import gc
mine[0](mine[2])
print(*[turns.has_turn for turns in gc.get_objects() if type(turns).__name__ == "SessionLane"])
"""


#: the processor adds up in another order
LOSSES_DIFFER = 1e-4


def train(seconds: float, seed: int = 1) -> str:
    """Return a cell that trains."""
    return TRAIN.replace("SECONDS", str(seconds)).replace("SEED", str(seed))


async def open_group(executor: Executor, *users: str) -> list[Notebook]:
    """Open notebooks of users of one group, who may share lanes."""
    return [await executor.notebook(user, limits=Limits(user=user, group="lab")) for user in users]


async def test_two_trainings_share_one_lane(process: ExecutorProcess) -> None:
    """Neither ends the other, nor reads what the other wrote; and both go on to use the lane."""
    async with Executor(process) as executor:
        notebooks = await open_group(executor, "ada", "grace")
        for _ in range(2):
            cells = [notebook.run(train(8, seed), timeout=120) for seed, notebook in enumerate(notebooks)]
            for outcome in await asyncio.gather(*cells):
                assert outcome.status == "ok", outcome
                # torch may log a line before
                passes, wrong, difference = json.loads(outcome.text.splitlines()[-1])
                assert passes > 5
                assert wrong == 0
                assert difference < LOSSES_DIFFER
        for notebook in notebooks:
            assert (await executor.session(notebook))["lane_note"] is None


#: writes where nothing is, by a kernel that no compiler is needed for
FAULT = """
import torch
from cuda.bindings import driver
torch.cuda.synchronize()
code = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.visible .entry wild() { .reg .u64 %a; .reg .u32 %b; "
code += b"mov.u64 %a, 8; mov.u32 %b, 1; st.global.u32 [%a], %b; ret; }\\0"
error, module = driver.cuModuleLoadData(code)
assert not error, error
error, wild = driver.cuModuleGetFunction(module, b"wild")
assert not error, error
kept = mine[0](mine[2])
driver.cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
torch.cuda.synchronize()
"""


async def test_a_fault_leaves_the_lane_to_others(process: ExecutorProcess) -> None:
    """In the middle of an iteration there; the other session goes on, in the lane."""
    async with Executor(process) as executor:
        # what they need is not known yet, so they are put into one lane
        good, bad = await open_group(executor, "ada", "grace")
        cell = asyncio.create_task(good.run(train(16) + HAS_LANE, timeout=120))
        outcome = await bad.run(train(8) + FAULT, timeout=120)
        assert (outcome.status, outcome.error) == ("error", "AcceleratorError"), outcome
        assert "could not hand its lane over" in (await executor.session(bad))["lane_note"]
        outcome = await bad.run("torch.ones(1, device='cuda').sum().item()")
        assert outcome.status == "error"
        outcome = await cell
        assert outcome.status == "ok"
        *_, losses, has_lane = outcome.text.splitlines()
        _, wrong, difference = json.loads(losses)
        assert wrong == 0
        assert difference < LOSSES_DIFFER
        assert has_lane == "True", outcome


async def test_memory_goes_at_the_first_request_and_comes_back(process: ExecutorProcess) -> None:
    """Also after a training, whose backward ran in threads of torch's; nothing is printed that is not the user's."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run("import torch; x = torch.ones(3, device='cuda')")
        assert (outcome.status, outcome.text) == ("ok", ""), "such as a warning of torch's about what the session calls"
        outcome = await notebook.run(train(2) + "kept = torch.arange(32 << 20, device='cuda'); print(kept.data_ptr())")
        assert outcome.status == "ok", outcome
        address = outcome.text.splitlines()[-1]
        for _ in range(3):
            await executor.client.offload_session(notebook.session)
            session = await executor.session(notebook)
            assert session["offloaded_bytes"] >= 256 * MIB, session
            outcome = await notebook.run("print(int(kept[12345]), int(kept[-1]), kept.data_ptr())")
            assert outcome.text == f"12345 {(32 << 20) - 1} {address}\n", outcome


async def test_the_first_lane_is_as_large_as_what_was_measured(process: ExecutorProcess) -> None:
    """Not as all that there is."""
    async with Executor(process) as executor:
        notebooks = [await executor.notebook(user) for user in ("ada", "grace")]
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                status = to_json(await executor.client.status())
                most = max(most, status["device"]["shared_units_bytes"])
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        outcomes = await asyncio.gather(*(notebook.run(train(4), timeout=120) for notebook in notebooks))
        assert [outcome.status for outcome in outcomes] == ["ok", "ok"], outcomes
        watching.cancel()
        assert 0 < most < 400 * MIB, most


async def test_the_end_of_a_cell_gives_back_what_did_not_fit_into_the_lane(process: ExecutorProcess) -> None:
    """An iteration that needed more than before took private memory for it."""
    overflow = """
for size in (1, 1, 1, 1, 1, 1, 300, 300, 1, 1):
    optimizer.zero_grad()
    large = torch.ones(size << 20, dtype=torch.uint8, device="cuda")
    del large
    model(inputs).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
"""

    async with Executor(process) as executor:
        notebook = await executor.notebook()
        assert (await notebook.run(train(2) + "model, optimizer, inputs = mine", timeout=120)).status == "ok"
        before = (await executor.session(notebook))["persistent_bytes"]
        outcome = await notebook.run(overflow, timeout=120)
        assert outcome.status == "ok", outcome
        after = (await executor.session(notebook))["persistent_bytes"]
        assert after < before + 128 * MIB, (before, after)


HOLD = """
import time, torch
host = torch.randn(75 << 18)
kept = host.cuda()
more = torch.arange(50 << 17, device="cuda")
"""
#: allocates SIZE; then also in backward, which runs in a thread of torch's; print whose thread it is and what is there
LARGE = """
import threading, torch
x = torch.ones(1 << 18, device="cuda")
large = torch.ones(SIZE, dtype=torch.uint8, device="cuda")
print(threading.current_thread() is threading.main_thread(), large[-1].item())
del large
torch.cuda.empty_cache()
"""
LARGE_BACKWARD = """
import threading, torch
class Large(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        print(threading.current_thread() is threading.main_thread())
        scratch = torch.ones(SIZE, dtype=torch.uint8, device="cuda")
        return gradient + scratch[-1]
x = torch.ones(3, device="cuda", requires_grad=True)
Large.apply(x).sum().backward()
print(x.grad.tolist())
"""


async def half_of(executor: Executor, holder: Notebook) -> str:
    """Return the size of what fits only if half of what a notebook has goes away."""
    device = to_json(await executor.client.status())["device"]
    session = await executor.session(holder)
    usable = device["capacity_bytes"] - device["reserve_bytes"]
    return str(usable - 2 * session["framework_bytes"] - session["persistent_bytes"] // 2)


async def test_a_cell_that_needs_more_than_is_free_gets_it_from_an_idle_notebook(process: ExecutorProcess) -> None:
    """In its middle, at the first try, in whatever thread; what was moved away comes back."""
    async with Executor(process) as executor:
        idle, busy = await executor.notebook("ada"), await executor.notebook("grace")
        assert (await idle.run(HOLD)).status == "ok"
        size = await half_of(executor, idle)
        for code, printed in ((LARGE, "True 1\n"), (LARGE_BACKWARD, "False\n[2.0, 2.0, 2.0]\n")):
            outcome = await busy.run(code.replace("SIZE", size), timeout=100)
            assert (outcome.status, outcome.text) == ("ok", printed), outcome
            assert (await executor.session(idle))["offloaded_bytes"] > 0
            outcome = await idle.run("print(torch.equal(kept.cpu(), host), more[-1].item())", timeout=100)
            assert outcome.text == f"True {(50 << 17) - 1}\n", outcome


async def test_a_backward_that_waits_for_memory_can_be_interrupted(process: ExecutorProcess) -> None:
    """While the notebook that has the memory is in the middle of a cell; both go on then."""
    async with Executor(process) as executor:
        holder, waiting = await executor.notebook("ada"), await executor.notebook("grace")
        assert (await holder.run(HOLD)).status == "ok"
        code = LARGE_BACKWARD.replace("SIZE", await half_of(executor, holder))
        holding = asyncio.create_task(holder.run("while True: time.sleep(0.01)", timeout=100))
        cell = asyncio.create_task(waiting.run(code, timeout=100))
        try:
            await executor.until_session(waiting, lambda session: session["state"] == "waiting", "it waits for memory")
            assert not cell.done()
            await executor.client.signal_session(waiting.session, signal.SIGINT)
            outcome = await cell
        finally:
            await executor.client.signal_session(holder.session, signal.SIGINT)
        assert (outcome.status, outcome.error) == ("error", "KeyboardInterrupt"), outcome
        assert outcome.text == "False\n", outcome
        assert (await holding).error == "KeyboardInterrupt"
        assert (await waiting.run("print(torch.ones(3, device='cuda').sum().item())")).text == "3.0\n"
        assert (await holder.run("print(torch.equal(kept.cpu(), host))")).text == "True\n"


async def test_threads_of_the_users_keep_the_lane_to_themselves(process: ExecutorProcess) -> None:
    """They may use the device in anybody's turn, so iterations do without a lane while they are alive."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        assert (await notebook.run(train(1))).status == "ok"  # its first turn has no lane
        begin = (
            "import threading; over = threading.Event(); thread = threading.Thread(target=over.wait); thread.start()\n"
        )
        assert (await notebook.run(begin + train(2) + HAS_LANE)).text.endswith("\nFalse\n")
        assert "threads of its own are alive" in (await executor.session(notebook))["lane_note"]
        assert (await notebook.run("over.set(); thread.join()\n" + train(2) + HAS_LANE)).text.endswith("\nTrue\n")
        assert (await executor.session(notebook))["lane_note"] is None


async def test_sessions_that_outlive_their_executor_do_without_a_lane(process: ExecutorProcess) -> None:
    """They lose nothing, in the middle of a cell as between cells, and status says why they share no more."""
    async with Executor(process) as executor:
        idle, running = await open_group(executor, "ada", "grace")
        for notebook in (idle, running):
            assert (await notebook.run(train(1))).status == "ok"  # its first turn has no lane
            assert (await notebook.run(train(2) + HAS_LANE)).text.endswith("\nTrue\n")
        before = (await executor.session(running))["iterations"]
        training = asyncio.create_task(running.run(train(12), timeout=120))
        await executor.until_session(running, lambda session: session["iterations"] > before + 5, "the training runs")
        await executor.replace()
        _, wrong, difference = json.loads((await training).text.splitlines()[-1])
        assert (wrong, difference < LOSSES_DIFFER) == (0, True)
        for notebook in (idle, running):
            assert (await notebook.run(train(1) + HAS_LANE, timeout=120)).text.endswith("\nFalse\n")
            assert "before its executor was restarted" in (await executor.session(notebook))["lane_note"]
