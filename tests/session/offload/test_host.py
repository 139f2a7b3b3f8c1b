"""Memory goes to a file and comes back: nothing that uses it notices, whatever fails on the way."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sharedkernel.session.offload import host
from sharedkernel.session.offload.host import CannotOffload, RegionOffload
from sharedkernel.session.offload.storages import survey
from tests import processes

MIB = 1 << 20


def send_away(directory: Path) -> RegionOffload:
    pending = RegionOffload(survey(), directory)
    pending.write()
    pending.commit()
    return pending


@contextlib.contextmanager
def limited(resource_number: int, soft: int) -> Iterator[None]:
    """Set a limit on this process in the body."""
    before = resource.getrlimit(resource_number)
    resource.setrlimit(resource_number, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource_number, before)


def nothing(done: int) -> None:
    """Pause for nothing."""


def resident_bytes() -> int:
    """Return this process's private memory in use; pages of files do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.heavy
def test_memory_is_freed_and_comes_back_where_it_was(directory: Path) -> None:
    """64 MiB are free while they are away; afterwards addresses, versions and values are as before.

    What is away can be read: code that looks at a tensor without asking anybody sees what is in it.
    """
    gc.collect()
    tensors = [torch.randn(MIB) for _ in range(16)]
    copies, arrays = [tensor.tolist()[:100] for tensor in tensors], [tensor.numpy() for tensor in tensors]
    standing = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    before = resident_bytes()
    away = send_away(directory)
    assert away.size >= 64 * MIB - 16 * 8192
    gone = resident_bytes()
    assert before - gone > 50 * MIB
    assert [tensor.tolist()[:100] for tensor in tensors] == [array[:100].tolist() for array in arrays] == copies
    away.restore(nothing)
    assert resident_bytes() - gone > 60 * MIB
    assert [(tensor.data_ptr(), tensor._version) for tensor in tensors] == standing
    assert [tensor.tolist()[:100] for tensor in tensors] == copies
    tensors[0].fill_(7)
    assert set(arrays[0].tolist()) == {7.0}


def test_a_graph_built_before_gives_the_same_gradients_after(directory: Path) -> None:
    """Tensors that autograd saved, views, gradients so far and an optimizer's state are in place."""

    def gradients(*, interrupted: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(64, 256)).square().mean().backward()
            optimizer.step()
        inputs = torch.randn(512, 256)
        part = inputs[7:]
        loss = model(part).square().mean()
        if interrupted:
            away = send_away(directory)
            away.restore(nothing)
        loss.backward()
        optimizer.step()
        return [*(parameter.clone() for parameter in model.parameters()), part.clone()]

    undisturbed = gradients(interrupted=False)
    disturbed = gradients(interrupted=True)
    assert all(torch.equal(one, other) for one, other in zip(undisturbed, disturbed, strict=True))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads around
def test_a_training_whose_data_loader_has_workers_has_the_same_losses(directory: Path) -> None:
    """To the bit, though its memory goes and comes at random points.

    The worker was forked before, lives on, and reads its copy of the data set.
    """

    def losses(disturbed: Collection[int]) -> list[float]:
        torch.manual_seed(7)
        model = torch.nn.Linear(256, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(512, 256), torch.randint(10, (512,)))
        loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True)
        found: list[float] = []
        for inputs, labels in itertools.chain(loader, loader):
            if len(found) in disturbed:
                away = send_away(directory)
                assert away.size > 64 << 10
                away.restore(nothing)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    undisturbed = losses(())
    assert len(undisturbed) == 64
    assert losses(random.Random(7).sample(range(64), 15)) == undisturbed


@pytest.mark.heavy
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_restore_cut_short_anywhere_leaves_everything_away(directory: Path, error: type[BaseException]) -> None:
    """At each of twenty random points: still away and readable, and the next attempt brings it back."""
    tensors = [torch.full((MIB,), float(number)) for number in range(8)]
    away = send_away(directory)
    gone = resident_bytes()
    generator = random.Random(error.__name__)
    for _ in range(20):
        stop_at = generator.randrange(away.size)

        def pause(done: int, stop_at: int = stop_at) -> None:
            if done + host.PIECE_BYTES > stop_at:
                raise error

        with pytest.raises(host.RestoreFailed if error is OSError else error):
            away.restore(pause)
        assert resident_bytes() < gone + 8 * MIB
        assert [tensor[-1].tolist() for tensor in tensors] == [float(number) for number in range(8)]
    away.restore(nothing)
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))


def test_it_comes_back_under_a_limit_lower_than_what_the_process_has(directory: Path) -> None:
    """The free part of the heap counts against a limit on private memory, but not against what comes back."""
    tensors = [torch.ones(MIB) for _ in range(16)]
    away = send_away(directory)
    data = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
    with limited(resource.RLIMIT_DATA, data - MIB):
        away.restore(nothing)
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == data - MIB
    assert all(bool((tensor == 1).all()) for tensor in tensors)


@pytest.mark.heavy
def test_the_address_space_is_as_before(directory: Path) -> None:
    """Mappings join again: a session may be offloaded any number of times."""
    tensors = [torch.ones(MIB // 16) for _ in range(200)]
    mappings = Path("/proc/self/maps")
    away = send_away(directory)
    away.restore(nothing)
    before = len(mappings.read_text().splitlines())
    for _ in range(5):
        away = send_away(directory)
        away.restore(nothing)
    assert len(mappings.read_text().splitlines()) <= before + 10
    assert all(bool((tensor == 1).all()) for tensor in tensors)


# --- the file ---------------------------------------------------------------------------------------------------------


def offload_files(count: int) -> list[int]:
    """Return the descriptors of the files that have what is away; wait until *count* are open.

    An earlier one may just be closed, by a thread or as garbage.
    """
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "sharedkernel-offload":
            thread.join()
    deadline = time.monotonic() + 60
    while True:
        files = processes.open_files(os.getpid())
        found = [descriptor for descriptor, name in files.items() if "/offload/" in name]
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, files
        time.sleep(0.001)


def test_the_file_is_private_nameless_and_not_inherited(directory: Path) -> None:
    """It is 0600 in a directory of 0700, has no name from the start, and is closed in programs started from here."""
    tensor = torch.ones(MIB)
    away = send_away(directory)
    (descriptor,) = offload_files(1)
    assert list(directory.iterdir()) == []
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert os.fstat(descriptor).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(descriptor)
    away.restore(nothing)
    offload_files(0)
    assert bool((tensor == 1).all())


def test_a_departure_given_up_changes_nothing(directory: Path) -> None:
    """Stopped while it writes: nothing moved, nothing left."""
    tensor = torch.ones(MIB)
    pending = RegionOffload(survey(), directory)
    pending.stop()
    with pytest.raises(CannotOffload) as caught:
        pending.write()
    assert caught.value.reason == "busy"
    assert pending.is_stopped
    pending.abort()
    offload_files(0)
    tensor += 1
    assert bool((tensor == 2).all())


def test_a_disk_without_room_is_said_before_anything_is_written(directory: Path) -> None:
    """A limit on the size of files stands for a full disk: refused with the figure and what to do."""
    tensor = torch.ones(4 * MIB)
    with (
        limited(resource.RLIMIT_FSIZE, MIB),
        pytest.raises(CannotOffload, match=r"MiB cannot be moved.* SHAREDKERNEL_OFFLOAD_DIR") as caught,
    ):
        RegionOffload(survey(), directory)
    assert caught.value.reason == "disk"
    offload_files(0)
    pending = RegionOffload(survey(), directory)
    with limited(resource.RLIMIT_FSIZE, MIB), pytest.raises(CannotOffload) as caught:
        pending.write()
    pending.abort()
    assert caught.value.reason == "disk", "the same half way"
    tensor += 1
    assert bool((tensor == 2).all())


@pytest.mark.parametrize("kind", ["a file", "open to others"])
def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path, kind: str) -> None:
    """No directory, or not a private one: one sentence that says which and what to do."""
    path = tmp_path / "offload"
    if kind == "a file":
        path.touch()
    else:
        path.mkdir(mode=0o755)
        path.chmod(0o755)
    tensor = torch.ones(MIB)
    with pytest.raises(CannotOffload, match=r"SHAREDKERNEL_OFFLOAD_DIR\.") as caught:
        RegionOffload(survey(), path)
    assert caught.value.reason == "disk"
    assert str(path) in str(caught.value)
    assert len(tensor) == MIB


#: before each of these programs
_IMPORTS = """
import os, resource, signal, sys
from pathlib import Path
import torch
from sharedkernel.session.offload.host import PIECE_BYTES, RegionOffload, RestoreFailed
from sharedkernel.session.offload.storages import survey

def send_away():
    pending = RegionOffload(survey(), Path(sys.argv[1]))
    pending.write()
    pending.commit()
    return pending
"""


def run_python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _IMPORTS + textwrap.dedent(code), str(directory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.heavy
def test_a_file_that_lost_its_bytes_is_a_clear_error(directory: Path) -> None:
    """A disk that does not give back what it took: told, and what is still there stays away for another attempt.

    Killed then, a process leaves no file.
    """
    done = run_python(
        """
        tensors = [torch.full((1 << 20,), float(number)) for number in range(8)]
        away = send_away()
        (file,) = [entry for entry in Path("/proc/self/fd").iterdir() if sys.argv[1] in str(entry.resolve())]
        os.truncate(file, 16 << 20)
        for attempt in range(2):
            try:
                away.restore(lambda done: None)
            except RestoreFailed as error:
                print(error)
        print([float(tensor[1000]) for tensor in tensors[:2]], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        directory,
    )
    assert done.returncode == -9, done.stderr
    first, second, values = done.stdout.splitlines()
    assert first == second
    assert "could not be brought back from the disk: its file is shorter than it was" in first
    assert values == "[0.0, 1.0]"
    assert list(directory.iterdir()) == []


@pytest.mark.heavy
def test_it_comes_back_whatever_limit_is_set_at_its_end(directory: Path) -> None:
    """One under which a thread can be made, but not take its first steps, has nobody wait for it."""
    code = """
    UNLIMITED = resource.RLIM_INFINITY, resource.RLIM_INFINITY

    def data_bytes():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmData:")) << 10

    kept = torch.arange(1 << 20)
    # the first thread's stack serves the others
    for spare in (64 << 20, *range(0, 128 << 10, 4 << 10)):
        away = send_away()

        def limit(done):
            if away.size - done <= PIECE_BYTES:
                limit = data_bytes() + min(PIECE_BYTES, away.size - done) + spare
                resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))

        away.restore(limit)
        resource.setrlimit(resource.RLIMIT_DATA, UNLIMITED)
    print(int(kept.sum()))
    """
    result = run_python(code, directory)
    assert result.stdout == f"{sum(range(1 << 20))}\n", result.stderr
