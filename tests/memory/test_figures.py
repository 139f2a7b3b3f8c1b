"""What the status, `%shared usage` and errors say of memory is what notebooks have made, quiet and busy."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sharedkernel.units import format_bytes
from tests.cli.support import COMMAND
from tests.cli.top.terminal import terminal
from tests.memory.walk import MIB, OWNERS, SIZES, SLACK, STEPS, USABLE, Walk

pytestmark = [pytest.mark.heavy, pytest.mark.beside_busy_loops]
#: walks of one test
WALKS = 5


@pytest.fixture(scope="module")
def walk() -> Iterator[Walk]:
    with Walk() as walk:
        yield walk


def draw_steps() -> st.SearchStrategy[list[tuple[str, int, int, int]]]:
    """Return steps: what is done, by which notebook, bytes and any number."""
    step = st.tuples(
        st.sampled_from(sorted(STEPS)), st.integers(0, 3), st.sampled_from([s * MIB for s in SIZES]), st.integers(0, 99)
    )
    return st.lists(step, min_size=4, max_size=8)


def test_figures_are_true_whatever_notebooks_do(walk: Walk) -> None:
    """At rest persistent memory is what was made and kept, nothing is ephemeral, and all figures come to the device's.

    A request that the quota and the device have room for is served, one that they have not fails in its own cell.
    """

    @settings(max_examples=WALKS, phases=[Phase.explicit, Phase.generate], print_blob=True)  # a walk takes seconds
    @given(draw_steps())
    def walks(steps: list[tuple[str, int, int, int]]) -> None:
        walk.begin()
        for name, which, size, pick in steps:
            STEPS[name](walk, which, size, pick)
            walk.check()
        walk.check_outside()

    walks()


def test_one_large_tensor_counts_once_and_goes_at_once(walk: Walk) -> None:
    """However long its making takes: the ordinary case, which no training shows."""
    walk.begin(OWNERS[:2])
    first, second = walk.notebooks
    walk.request(0, 600 * MIB, keeps=True, way="slow")
    walk.check()
    walk.request(1, 300 * MIB, keeps=True)
    walk.check()
    walk.run(first, "%reset -f")
    first.tensors.clear()
    walk.check()
    walk.run(second, "print('rests')")
    usage = walk.run(second, "%shared usage")
    assert f"of your quota of {format_bytes(walk.quota)}" in usage
    session = next(s for s in walk.stack.status().sessions if s.kernel_id == second.notebook.kernel_id)
    assert f"{format_bytes(session.persistent_bytes)} persistent" in usage


@pytest.mark.parametrize("before", ["", "torch.ones(2) + 1\n"], ids=["holding nothing", "holding the device"])
def test_a_cell_reads_what_it_has_freed_itself(walk: Walk, before: str) -> None:
    """Not what it had when it began."""
    walk.begin()
    first = walk.notebooks[0]
    walk.run(first, f"kept = make({200 * MIB})")
    assert "200 MiB persistent" in walk.run(first, "%shared usage")
    code = f"{before}del kept\nget_ipython().run_line_magic('shared', 'usage')"
    own = re.findall(r"([\d.]+) (MiB|KiB|B) persistent", walk.run(first, code))
    assert len(own) == 1
    assert own[0][1] != "MiB" or float(own[0][0]) < SLACK / MIB, own
    walk.check()


def test_what_people_read_is_what_was_made(walk: Walk) -> None:
    """The same figure in `top`, `status`, `%shared usage`, the widget's text and the error of a request beyond."""
    walk.begin(("ada", "bob"))
    walk.request(0, 600 * MIB, keeps=True)
    walk.request(1, 300 * MIB, keeps=True)
    walk.run(walk.notebooks[0], "print('rests')")
    walk.check()
    environment = {"SHAREDKERNEL_GATEWAY_URL": walk.stack.gateway_url, "SHAREDKERNEL_TOKEN": walk.stack.token("ada")}
    command = subprocess.run(
        [*COMMAND, "status"], env=os.environ | environment, capture_output=True, text=True, check=True, timeout=60
    )
    with terminal(environment) as top:
        top.wait_for("persistent")
        texts = {
            "top": top.text,
            "status": command.stdout,
            "%shared usage": walk.run(walk.notebooks[0], "%shared usage"),
            "Usage()": walk.run(walk.notebooks[0], "from sharedkernel.widgets import Usage\nprint(repr(Usage()))"),
            "error": walk.execute(walk.notebooks[0], f"make({walk.quota})").error or "",
        }
    for place, text in texts.items():
        figures = [float(mib) for mib in re.findall(r"([\d.]+) MiB", text)]
        assert any(abs(mib - 600) <= 18 for mib in figures), f"{place}: {text}"
    own = {place: re.findall(r"([\d.]+ MiB) persistent", texts[place]) for place in ("top", "%shared usage", "Usage()")}
    assert own["top"] == own["%shared usage"] == own["Usage()"] != [], own


def test_what_the_device_gave_beyond_the_quota_comes_back(walk: Walk) -> None:
    """It cannot refuse each byte; a cell that asks for nothing new is not refused for that, once its memory is away."""
    walk.begin(OWNERS[:2])
    walk.shelve(0, 160 * MIB)
    walk.request(1, 900 * MIB, keeps=True)
    assert walk.has("ada") > walk.quota
    walk.offload(1)
    walk.check()


def test_what_plain_python_frees_is_free_for_the_machine(walk: Walk) -> None:
    """Pieces of 4 MiB lie on the heap, which keeps what an iteration frees for the next; no grant follows a `del`.

    Nor does one need to have been held since the memory was away and back.
    """
    walk.begin(OWNERS[:1])
    (notebook,) = walk.notebooks
    walk.run(notebook, "pieces = [make(4 << 20) for _ in range(80)]\ndel pieces[40:]")
    notebook.tensors["pieces"] = 160 * MIB
    walk.check_outside()  # the session has settled after its grant then
    walk.run(notebook, "del pieces[20:]")
    notebook.tensors["pieces"] = 80 * MIB
    walk.check_outside()
    walk.offload(0)
    walk.run(notebook, "del pieces")
    notebook.tensors.clear()
    walk.check()
    walk.check_outside()


def test_a_quota_is_all_usable(walk: Walk) -> None:
    """By five notebooks, each shut down before the next round; what was shut down can be had back."""
    num_notebooks = 5
    walk.begin(("ada",) * num_notebooks)
    for _ in range(2):
        size = int(USABLE * walk.quota) // num_notebooks
        for number in range(num_notebooks):
            walk.request(number, size, keeps=True)
        walk.check()
        for number in range(num_notebooks):
            walk.shut_down(number)


def test_all_of_the_device_is_usable() -> None:
    """Less what the sessions' processes need, as the panel shows it: by one notebook, then by two, then by five."""
    with Walk(capacity=1024 * MIB, quota=1024 * MIB) as walk:
        walk.begin(("ada",) * 5)
        for num_notebooks in (1, 2, 5):
            frameworks = sum(session.framework_bytes for session in walk.stack.status().sessions)
            size = (int(USABLE * walk.capacity) - frameworks) // num_notebooks
            for number in range(num_notebooks):
                walk.request(number, size, keeps=True)
                assert walk.notebooks[number].bytes == size, walk.account()
            walk.check()
            for number in range(num_notebooks):
                walk.shut_down(number)


def test_a_small_quota_is_usable_too() -> None:
    """Reserves and slack are no part of it."""
    with Walk(quota=512 * MIB) as walk:
        walk.begin(("ada", "ada"))
        for number in (0, 1):
            walk.request(number, int(USABLE * walk.quota), keeps=True)
            walk.check()
            walk.shut_down(number)
        for number in (0, 1):
            walk.request(number, int(USABLE * walk.quota) // 2, keeps=True)
        walk.check()


def test_what_a_loop_frees_can_be_had_again(walk: Walk) -> None:
    """Whatever pieces the heap is in: the limit on the process leaves room for what the quota does."""
    for size in (64 * MIB, 100_000_000):
        walk.begin(OWNERS[:1])
        walk.request(0, 900 * MIB, keeps=True, way="slow")
        walk.run(walk.notebooks[0], f"for _ in range(40): float(make({size}).sum())")
        walk.check()


def test_what_is_free_on_the_heap_adds_nothing_to_a_quota(walk: Walk) -> None:
    """Least of all at its end, where glibc puts what gets no map of its own."""
    walk.begin(OWNERS[:1])
    for _ in range(8):  # whenever the heap is trimmed
        walk.run(walk.notebooks[0], "pieces = [make(1 << 20) for _ in range(100)]\ndel pieces")
        walk.request(0, walk.quota + SLACK + 40 * MIB, keeps=False)


def test_what_was_shut_down_and_cannot_be_moved_is_ended_for_others(walk: Walk) -> None:
    """A thread of its own keeps it where it is; it refuses neither its owner nor anybody else."""
    walk.begin(("ada", "bob"))
    walk.request(0, 600 * MIB, keeps=True)
    thread = "import threading\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    walk.run(walk.notebooks[0], thread)
    walk.shut_down(0)
    walk.request(0, 900 * MIB, keeps=True)
    walk.request(1, 900 * MIB, keeps=True)
    walk.check()
    log = walk.stack.executor.log_path.read_text()
    assert "had been shut down, and was ended: its memory was needed and could not be moved away" in log


def test_a_running_cell_that_asks_for_nothing_new_goes_on(walk: Walk) -> None:
    """Another notebook of its user takes all that is left meanwhile, and gets the error when that is not enough."""
    walk.begin(OWNERS[:2])
    first, second = walk.notebooks
    walk.train(0)
    walk.run(first, "import threading\nsteps = 0\n")
    code = (
        "until = time.monotonic() + 12\n"
        "while time.monotonic() < until:\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(256, 1000, device=device)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "    steps += 1\n"
        "optimizer.zero_grad()\n"
        "print(steps)"
    )

    async def beside() -> tuple[str | None, str | None]:
        training = asyncio.create_task(first.notebook.execute(code))
        while not any(session.state == "running" for session in walk.stack.status().sessions):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        greedy = await second.notebook.execute("rows = []\nwhile True: rows.append(make(16 << 20))")
        return (await training).error, greedy.error

    training, greedy = walk._runner.run(beside())
    assert training is None, training
    assert (greedy or "").startswith("OutOfMemoryError: "), greedy
    walk.run(second, "del rows")
    walk.check()
