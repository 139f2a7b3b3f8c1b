"""Users' own accounts: which a user has, and who becomes them, once and for all."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError, ExecutorUnavailable
from sharedkernel.executor.isolation.accounts import NUMBERS_FILE, parse_uid_range
from sharedkernel.executor.processes.process import start_time
from sharedkernel.protocol import Limits
from tests.executor.harness import until
from tests.executor.isolation import ADA, FIRST_UID, ApartExecutor, Executor, needs_root

pytestmark = needs_root


@pytest.mark.heavy
async def test_numbers_stay_and_are_nobody_else_s(apart: ApartExecutor) -> None:
    """A user has the same number in every session and after a restart; names that look alike have others."""
    async with Executor(apart) as executor:
        first = {}
        for user in (ADA, ADA.title(), f"../{ADA}", f".{ADA}"):
            notebook = await executor.notebook(user)
            first[user] = (await notebook.run("import os; os.getuid(), os.getcwd()")).text
        assert len(set(first.values())) == 4
        await executor.replace()
        again = await executor.notebook(f"../{ADA}")
        assert (await again.run("import os; os.getuid(), os.getcwd()")).text == first[f"../{ADA}"]
        given = json.loads((apart.homes / NUMBERS_FILE).read_text())["uids"]
        assert len(set(given.values())) == len(given)
        assert all(Path(folder).parent == apart.homes for _, folder in map(ast.literal_eval, first.values()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-10", "takes in user ids of the system's own"),
        ("many", "'many' is no range of user ids"),
        ("300000-200000", "the first comes before the last"),
    ],
)
def test_a_wrong_range_gets_one_sentence(text: str, expected: str) -> None:
    """The executor does not start."""
    with pytest.raises(ConfigError, match=expected):
        parse_uid_range(text)


@pytest.mark.heavy
async def test_what_was_forked_before_users_were_kept_apart_serves_nobody_new() -> None:
    """Sessions that run go on as they are; a spare, which could still gain rights, is no user's any more."""
    rights = "import os; os.getuid(), 'NoNewPrivs:\\t1' in open('/proc/self/status').read()"

    class LaterApart(ApartExecutor):
        is_apart = False

    process = LaterApart()
    try:
        async with Executor(process) as executor:
            before = await executor.notebook()
            assert (await before.run(rights)).text == "(0, False)"
            await until(lambda: len(list(process.runtime_directory.glob("s/*.json"))) == 2, "there is a spare")
            process.is_apart = True
            await executor.replace()
            assert (await before.run(rights)).text == "(0, False)"
            after = await executor.notebook()
            uid, is_held = ast.literal_eval((await after.run(rights)).text)
            assert uid in range(FIRST_UID, FIRST_UID + 100)
            assert is_held
    finally:
        await asyncio.to_thread(process.close)


@pytest.mark.heavy
async def test_a_session_that_was_not_yet_its_user_s_is_not_adopted(apart: ApartExecutor) -> None:
    """The executor ended between giving a spare to a user and the spare's becoming the user: it still has rights."""
    async with Executor(apart) as executor:
        spare, *_ = await until(apart.spares, "there is a spare")
        os.kill(spare.pid, signal.SIGSTOP)  # it does not hear that it is given away
        start = asyncio.create_task(executor.client.start_session("half-given", Limits(user=ADA)))

        async def is_given() -> bool:
            return "half-given" in [record.session for record in await executor.client.sessions()]

        await until(is_given, "the spare is given away")
        await executor.replace()
        with pytest.raises(ExecutorUnavailable):
            await start
        assert not await is_given()
        await until(lambda: start_time(spare.pid) != spare.started, "it is ended")
        assert (await (await executor.notebook()).run("import os; os.getuid() >= 1000")).text == "True"
