"""Users' own accounts: which a user has, and who becomes them, once and for all; and homes of their own without any."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from sharedkernel.errors import ConfigError
from sharedkernel.executor.isolation.accounts import NUMBERS_FILE, parse_uid_range
from tests.executor import harness
from tests.executor.conftest import StartExecutor
from tests.executor.harness import until
from tests.executor.isolation import ADA, FIRST_UID, ApartExecutor, Executor, needs_root
from tests.status.documents import to_json


@needs_root
@pytest.mark.heavy
async def test_numbers_stay_and_are_nobody_else_s(apart: ApartExecutor) -> None:
    """A user has the same number in every session and after a restart; names that look alike have others."""
    look = "import os; os.getuid(), os.getcwd()"

    async with Executor(apart) as executor:
        notebooks = await executor.notebooks(ADA, ADA.title(), f".{ADA}", f"../{ADA}")
        first = [(await notebook.run(look)).text for notebook in notebooks]
        assert len(set(first)) == 4
        await executor.replace()
        assert (await (await executor.notebook(f"../{ADA}")).run(look)).text == first[-1]
        given = json.loads((apart.homes / NUMBERS_FILE).read_text())["uids"]
        assert len(set(given.values())) == len(given)
        assert all(Path(folder).parent == apart.homes for _, folder in map(ast.literal_eval, first))


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


@needs_root
@pytest.mark.heavy
async def test_what_was_forked_before_users_were_kept_apart_serves_nobody_new(apart: ApartExecutor) -> None:
    """Sessions that run go on as they are; a spare, which could still gain rights, is no user's any more."""
    rights = "import os; os.getuid(), 'NoNewPrivs:\\t1' in open('/proc/self/status').read()"

    async with Executor(apart) as executor:
        apart.is_apart = False
        try:
            await executor.replace()
            before = await executor.notebook()
            assert (await before.run(rights)).text == "(0, False)"
            await until(apart.spares, "there is a spare")
        finally:
            apart.is_apart = True
        await executor.replace()
        assert (await before.run(rights)).text == "(0, False)"
        after = await executor.notebook()
        uid, is_held = ast.literal_eval((await after.run(rights)).text)
        assert uid in range(FIRST_UID, FIRST_UID + 100)
        assert is_held


@pytest.mark.heavy
async def test_users_do_not_come_across_each_other_s_files(start_executor: StartExecutor, tmp_path: Path) -> None:
    """Folder, history, settings and installed packages are each user's own; status says what that does not protect."""
    homes = tmp_path / "homes"
    where = """if True:
        import os
        from pathlib import Path
        from sharedkernel.session.kernel.packages import overlay
        print((os.getcwd(), str(Path.home()), get_ipython().ipython_dir, str(overlay().parent)))
    """

    async with harness.Executor(start_executor("--homes", str(homes))) as executor:
        device = to_json(await executor.client.status())["device"]
        assert device["isolation"] == "homes"
        assert "end other users' sessions" in device["isolation_note"]
        ada, grace = await executor.notebooks("ada", "grace")
        for notebook, user in ((ada, "ada"), (grace, "grace")):
            home = str(homes / user)
            own = (home, home, f"{home}/.ipython", f"{home}/.local/share/sharedkernel")
            assert ast.literal_eval((await notebook.run(where)).text) == own
        await ada.run("a_secret = 7")
        assert "a_secret" not in (await grace.run("%history -g")).text
