"""A runtime directory that somebody removes, changes or replaces while an executor serves from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import psutil
import pytest

from sharedkernel.errors import Refused
from tests.executor.harness import Executor, ExecutorProcess, Notebook
from tests.warm import take_place

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def process() -> Iterator[ExecutorProcess]:
    process = ExecutorProcess(place=take_place())
    yield process
    process.close()


async def _runs(notebook: Notebook, code: str = "6 * 7") -> str:
    return (await notebook.run(code)).text


async def test_a_removed_directory_is_made_anew(process: ExecutorProcess) -> None:
    """New notebooks start at once and running ones continue, whichever user made it; the next executor adopts all."""
    place = process.runtime_directory

    async with Executor(process) as executor:
        before = await executor.notebook()
        warm_parent = psutil.Process(psutil.Process(before.record.pid).ppid())
        await _runs(before, "x = 6")
        after: list[Notebook] = []
        for mode, number in ((None, 3), (0o755, 2)):
            while place.exists():  # again where the executor has just put a file there
                shutil.rmtree(place, ignore_errors=True)
            if mode is not None:
                place.mkdir(mode=mode)
                place.chmod(mode)
            # also where the warm parent and its spares have to find the directory
            new = await executor.notebooks(*["ada"] * number)
            assert [await _runs(notebook) for notebook in new] == ["42"] * number
            assert await _runs(before, "x") == "6"
            assert place.stat().st_mode & 0o777 == 0o700
            after += new
        log = (process.directory / "executor.log").read_text()
        assert "was removed or changed; it is made anew" in log
        await executor.replace()
        for notebook in (before, *after):
            assert await _runs(notebook) == "42"
        assert await _runs(await executor.notebook()) == "42"
    warm_parent.kill()  # no later executor finds it, and it would wait for one for minutes


async def test_a_place_that_is_not_ours_to_use_refuses_starts_at_once(process: ExecutorProcess) -> None:
    """With one sentence that says what to do; once that is done, notebooks start."""
    place, aside = process.runtime_directory, process.directory / "aside"

    async with Executor(process) as executor:
        place.rename(aside)
        place.mkdir()
        place.chmod(0o777)
        for _ in range(3):
            with pytest.raises(Refused, match=f"is gone, and nothing starts .* run `chmod 700 {place}`") as refused:
                await executor.notebook()
            assert refused.value.reason == "start"
        log = (process.directory / "executor.log").read_text()
        assert log.count("ERROR sharedkernel.executor.runtime_directory: the runtime directory") <= 1 + log.count(
            "made anew"
        )
        os.rmdir(place)
        aside.rename(place)
        assert await _runs(await executor.notebook()) == "42"
