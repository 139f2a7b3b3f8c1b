"""The prototype of a gate below torch (`benchmarks/gpu/launch_hook`): what waits at it, and how a wait ends."""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.gpu.launch_hook.hook import NOT_READY, OPERATING_SYSTEM, build
from tests.software_gpu.support import is_here, run_python, start_python, until

pytestmark = pytest.mark.software_gpu
#: what depends on how torch does things; not yet examined where these tests fail with a newer one
of_torch_2_11 = pytest.mark.skipif(
    not version("torch").startswith("2.11."), reason="describes torch 2.11; fails with 2.15, not yet examined"
)


@pytest.fixture(scope="module")
def hook_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not is_here():
        pytest.skip("needs the software GPU")
    return build(tmp_path_factory.mktemp("hook"))


@pytest.fixture(autouse=True)
def hooked(hook_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the programs of the test start with the hook."""
    monkeypatch.setenv("LD_PRELOAD", str(hook_path))


#: defines `waits(call)`, which checks that a call waits while the gate is closed and goes on when it is opened
PRELUDE = """if True:
    import os, signal, threading, time
    from benchmarks.gpu.launch_hook.hook import *
    from tests.software_gpu.support import MIB, until
    hook = Hook()

    def when_waiting(act):
        def run():
            until(lambda: hook.waiting, "a call waits")
            time.sleep(0.2)
            act()
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def waits(call, **settings):
        opened = []
        def open_gate():
            opened.append(time.monotonic())
            hook.open_gate()
        hook.close_gate(**settings)
        thread = when_waiting(open_gate)
        call()
        assert opened and time.monotonic() >= opened[0]
        thread.join()
"""

#: the driver's calls as NVIDIA's runtime finds them, with nothing but `ctypes`
PLAIN_CALLER = (
    PRELUDE
    + """
    import ctypes
    driver = ctypes.CDLL("libcuda.so.1")
    def find(name):
        found = ctypes.c_void_p()
        assert driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(found), 13000, ctypes.c_uint64(0), None) == 0
        return ctypes.CFUNCTYPE(ctypes.c_int)(found.value)
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    assert find("cuInit")(0) == 0
    assert find("cuDevicePrimaryCtxRetain")(ctypes.byref(context), 0) == 0
    assert find("cuCtxSetCurrent")(context) == 0
    results = []
    zeros = [ctypes.c_void_p(0)] * 3
    waits(lambda: results.append(find("cuMemAlloc")(ctypes.byref(memory), ctypes.c_size_t(4096))))
    waits(lambda: results.append(find("cuMemsetD8")(memory, 1, ctypes.c_size_t(4096))))
    waits(lambda: results.append(find("cuLaunchKernel")(None, 1, 1, 1, 1, 1, 1, 0, *zeros)))
    waits(lambda: results.append(driver.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, *zeros)))
    assert results == [0] * 4 and hook.missed == 0
"""
)

BINDINGS = (
    PRELUDE
    + """
    from tests.software_gpu.support import Driver
    driver = Driver()
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0))
    function = driver.cuModuleGetFunction(driver.cuModuleLoadData(b""), b"kernel")
    memory = []
    waits(lambda: memory.append(driver.cuMemAlloc(4096)))
    waits(lambda: driver.cuMemsetD8(memory[0], 7, 4096))
    waits(lambda: driver.cuMemcpyHtoD(memory[0], bytes(4096), 4096))
    waits(lambda: driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    assert hook.missed == 0
"""
)

TORCH = (
    PRELUDE
    + """
    import torch
    x = torch.ones(8, device="cuda", requires_grad=True)
    waits(lambda: x.detach() + 1)
    waits(lambda: torch.ones(8).to("cuda"))
    waits(lambda: torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))

    def in_thread():
        thread = threading.Thread(target=lambda: x.detach() * 2)
        thread.start()
        thread.join()
    waits(in_thread)

    loss = (x * 3).sum()
    waits(loss.backward)
    assert x.grad.tolist() == [3.0] * 8

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.detach() + 1
    waits(graph.replay)
    assert hook.missed == 0
"""
)


@pytest.mark.parametrize("program", [PLAIN_CALLER, BINDINGS, TORCH], ids=["ctypes", "bindings", "torch"])
def test_calls_wait_for_the_grant(program: str) -> None:
    """Launches, copies and allocations of any library, in any thread, of backward and of graphs."""
    run_python(program)


def test_a_wait_is_reported() -> None:
    """On an eventfd, for the thread that asks the executor."""
    run_python(
        PRELUDE
        + """
    import torch
    x = torch.ones(8, device="cuda")
    wanted = os.eventfd(0)
    waits(lambda: x + 1, wanted=wanted)
    assert os.eventfd_read(wanted) == 1
"""
    )


@of_torch_2_11
def test_torch_has_pythons_lock_only_for_storages() -> None:
    """Its bindings release it before an operation, and not for the methods of a storage."""
    run_python(
        PRELUDE
        + """
    import copy, io, torch
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with hook.counting():
        for _ in range(5):
            loss = model(torch.randn(4, 8).cuda()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
    assert hook.seen(LAUNCH, with_lock=False) > 50 and hook.seen(ALL, with_lock=True) == 0
    x = torch.ones(8, device="cuda")
    file = io.BytesIO()
    for call in (
        lambda: copy.deepcopy(x), x.untyped_storage().cpu, torch.cuda.current_blas_handle,
        lambda: torch.save(x, file), lambda: (file.seek(0), torch.load(file)),
    ):
        before = hook.seen(ALL, with_lock=True)
        with hook.counting():
            call()
        assert hook.seen(ALL, with_lock=True) > before
    waits(x.untyped_storage().cpu)  # other threads run meanwhile: one of them opens the gate
"""
    )


#: `ends(call)` returns the errors that an interrupted wait ends with, and checks that nothing is left of it
INTERRUPTED = (
    PRELUDE
    + """
    import gc, sys, torch
    x = torch.ones(1000, device="cuda", requires_grad=True)
    loss = x.sum()
    static, replayed = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(replayed):
        static + 1

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static + 2

    calls = {
        "launch": lambda: x.detach() + 1,
        "allocation": lambda: torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"),
        "copy": lambda: torch.ones(8).to("cuda"),
        "item": lambda: x.detach()[0].item(),
        "storage": lambda: x.untyped_storage().cpu(),
        "replay": replayed.replay,
        "capture": capture,
        "backward": lambda: loss.backward(retain_graph=True),
    }

    def ends(call, interrupt):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        hook.close_gate(interrupted_result=int(sys.argv[1]))
        thread = when_waiting(interrupt)
        error = None
        try:
            call()
            for _ in range(3):
                pass
        except (RuntimeError, KeyboardInterrupt) as caught:
            error = caught
            try:
                for _ in range(3):
                    pass
            except KeyboardInterrupt as later:
                error = later
        thread.join()
        hook.open_gate()
        names = [type(error).__name__]
        if error.__context__:
            names.append(type(error.__context__).__name__)
        del error
        gc.collect()
        torch.cuda.synchronize()
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
        assert (torch.ones(8, device="cuda") + 1).sum().item() == 16
        call()
        torch.cuda.synchronize()
        return names
"""
)


@of_torch_2_11
@pytest.mark.parametrize("result", [OPERATING_SYSTEM, NOT_READY])
def test_an_interrupted_wait_leaves_torch_usable(result: int) -> None:
    """The call fails, the interrupt follows, and the same call works afterwards: the error does not stick."""
    run_python(
        INTERRUPTED
        + """
    for name, call in calls.items():
        if name != "backward":  # there the main thread waits in torch for another, which no signal reaches
            names = ends(call, lambda: os.kill(os.getpid(), signal.SIGINT))
            assert names[0] == "KeyboardInterrupt", (name, names)
            assert names[1] in ("RuntimeError", "AcceleratorError"), (name, names)
""",
        str(result),
    )


@of_torch_2_11
def test_any_thread_can_end_all_waits() -> None:
    """Also those of backward."""
    run_python(
        INTERRUPTED
        + """
    for name, call in calls.items():
        assert ends(call, hook.cancel)[0] in ("RuntimeError", "AcceleratorError"), name
""",
        str(OPERATING_SYSTEM),
    )


def test_out_of_memory_is_no_result_for_an_interrupted_allocation() -> None:
    """Torch's allocator frees what it has cached and tries again, so that the wait begins anew."""
    run_python(
        PRELUDE
        + """
    import torch
    x = torch.ones(8, device="cuda")
    hook.close_gate(interrupted_result=OUT_OF_MEMORY)
    ends = []
    def run():
        try:
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            ends.append("out of memory")
    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: hook.waiting, "it waits")
    hook.cancel()
    until(lambda: hook.seen(ALLOCATION, with_lock=False) == 2, "it tries again")
    assert not ends
    hook.open_gate()
    thread.join()
    assert not ends
"""
    )


#: a thread that asks torch's allocator for its figures while an allocation waits in it, with its lock
ASKS_MEANWHILE = """if True:
    import mmap, sys, threading, time
    from benchmarks.gpu.launch_hook.hook import *
    import torch
    file, sys.stdout = open(sys.argv[1], "r+b"), open(sys.argv[3], "w")
    hook = Hook(mmap.mmap(file.fileno(), mmap.PAGESIZE))
    x = torch.ones(8, device="cuda")
    torch.cuda.synchronize()

    def ask():
        while not hook.waiting:
            time.sleep(0.01)
        print("waits", flush=True)
        torch.cuda.memory_allocated()
        print("asked", flush=True)

    def live():
        while not hook.waiting:
            time.sleep(0.01)
        time.sleep(0.5)
        print("lives", flush=True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    threading.Thread(target=live, daemon=True).start()
    hook.close_gate()
    if sys.argv[2] == "operation":
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    else:
        x.untyped_storage().resize_(64 << 20)
    asking.join()
    print("done", flush=True)
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Path, mmap.mmap]]:
    path = tmp_path / "page"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
        yield path, mapped


def run_asking(how: str, path: Path, mapped: mmap.mmap) -> tuple[str, str]:
    """Return what the program prints before and after the grant, which comes from here."""
    output = path.with_name("output")
    output.touch()
    process = start_python(ASKS_MEANWHILE, str(path), how, str(output))
    try:
        until(lambda: "waits" in output.read_text(), "an allocation waits")
        time.sleep(1)
        before = output.read_text()
        mapped[0:8] = (1).to_bytes(8, "little")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        return before, output.read_text().removeprefix(before)
    finally:
        process.kill()
        process.communicate()


def test_an_allocation_that_waits_can_stop_all_threads(page: tuple[Path, mmap.mmap]) -> None:
    """One has Python's lock and waits for the allocator's; only a grant from outside the process ends that."""
    before, after = run_asking("operation", *page)
    assert before == "waits\n"
    assert {"asked", "done"} <= set(after.split())


def test_an_allocation_that_gave_up_pythons_lock_can_hang_for_ever(page: tuple[Path, mmap.mmap]) -> None:
    """It needs that lock again, whose owner waits for the allocator's: so allocations have to pass a gate like this."""
    before, after = run_asking("storage", *page)
    assert before == "waits\n"
    assert after == ""
