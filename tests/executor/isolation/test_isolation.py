"""Sessions under users' own accounts: what the operating system lets them do, and to whom."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sharedkernel.errors import Refused
from sharedkernel.executor.isolation.accounts import NUMBERS_FILE
from sharedkernel.paths import SHELF_DIRECTORY
from sharedkernel.protocol import Limits
from tests.executor.harness import ExecutorProcess, until
from tests.executor.isolation import ADA, FIRST_UID, GRACE, HEDY, ApartExecutor, Executor, needs_root
from tests.executor.sessions.test_packages import make_wheel
from tests.status.documents import to_json

pytestmark = needs_root


_RIGHTS = """if True:
    import os, resource
    from pathlib import Path
    tasks = [dict(line.split(":\\t", 1) for line in (task / "status").read_text().splitlines() if ":\\t" in line)
             for task in Path("/proc/self/task").iterdir()]
    names = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")
    rights = {tuple(task[name].strip() for name in names) for task in tasks}
    limits = [resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("NPROC", "NOFILE", "CORE")]
    print((len(tasks), rights, limits, os.umask(0o077), os.getcwd(), os.environ["HOME"]))
"""


async def test_a_hung_session_outlives_its_executor_and_a_session(apart: ApartExecutor) -> None:
    """The next executor finds it by its record and its page; the one that was killed is not there."""
    async with Executor(apart) as executor:
        hung, killed = await executor.notebooks(ADA, GRACE)
        await hung.run("import torch; x = torch.arange(6.)")
        os.kill(hung.record.pid, signal.SIGSTOP)
        async with executor.away():
            os.kill(killed.record.pid, signal.SIGKILL)
        assert [record.pid for record in await executor.client.sessions()] == [hung.record.pid]
        await executor.replace()  # the one after it as well, though the hung one greeted neither
        assert [record.pid for record in await executor.client.sessions()] == [hung.record.pid]
        assert (await (await executor.notebook(GRACE)).run("1 + 1")).text == "2"
        os.kill(hung.record.pid, signal.SIGCONT)
        assert (await hung.run("float(x.sum())")).text == "15.0"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="nothing here takes a capability from a process")
def test_an_executor_that_could_adopt_nobody_does_not_start(tmp_path: Path) -> None:
    """The capability that is missing is told before there are sessions."""
    executor = [sys.executable, "-m", "sharedkernel", "executor", "--device", "host", "--isolate", "users"]
    places = ["--runtime-dir", str(tmp_path / "run"), "--homes", str(tmp_path / "homes")]
    command = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", *executor, *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "takes the capability CAP_SYS_PTRACE" in done.stderr


async def test_a_session_has_its_user_s_rights_and_no_more(apart: ApartExecutor) -> None:
    """Every thread runs under the user's number, without capabilities, and can gain none."""
    async with Executor(apart) as executor:
        notebook = await executor.notebook()
        outcome = await notebook.run(_RIGHTS)
        threads, rights, limits, umask, folder, home = ast.literal_eval(outcome.text)
        assert threads > 1
        ((uid, gid, groups, *capabilities, privileges),) = rights
        number = int(uid.split()[0])
        assert uid.split() == gid.split() == [str(number)] * 4
        assert number in range(FIRST_UID, FIRST_UID + 100)
        assert "0" not in groups.split()
        assert all(int(capability, 16) == 0 for capability in capabilities)
        assert privileges == "1"
        assert limits == [(4096, 4096), (8192, 8192), (0, 0)]
        assert umask == 0o077
        assert folder == home == str(apart.homes / ADA)
        assert psutil.Process(notebook.record.pid).uids().effective == number


_BE_A_GATEWAY = """if True:
    from pathlib import Path
    from sharedkernel.ipc.executor_client import ExecutorClient
    await ExecutorClient(Path({run!r}), served="host", role="gateway").connect()
"""


async def test_users_reach_nothing_of_each_other(apart: ApartExecutor, tmp_path: Path) -> None:
    """Neither files nor processes, nor the sockets, connection files and logs of sessions; not even one's own keys.

    What a user installs lies in their home, for all of their sessions; the environment itself nobody can write to.
    """
    wheel = shutil.copy(make_wheel(tmp_path), apart.directory)
    os.chmod(wheel, 0o644)

    async with Executor(apart) as executor:
        ada, grace = await executor.notebooks(ADA, GRACE)
        await ada.run("open('secret', 'w').write('x')")
        sockets = ada.record.connection["ip"]
        run = str(apart.runtime_directory)
        for attempt in (
            f"open({str(apart.homes / ADA / 'secret')!r})",
            f"import os; os.listdir({str(apart.homes / ADA)!r})",
            f"import os; os.listdir({run!r})",
            f"import os; os.listdir({run + '/s'!r})",
            f"open({sockets.removesuffix('-ipc') + '.json'!r})",
            f"import socket; socket.socket(socket.AF_UNIX).connect({sockets + '-1'!r})",
            f"import os; os.listdir({str(apart.homes / SHELF_DIRECTORY)!r})",
            f"import socket as s; s.socket(s.AF_UNIX, s.SOCK_SEQPACKET).connect({run + '/warm.sock'!r})",
            f"import os; os.kill({ada.record.pid}, 9)",
            f"open('/proc/{ada.record.pid}/environ')",
            f"open('/proc/{ada.record.pid}/mem')",
            f"import os; os.listdir('/proc/{ada.record.pid}/fd')",
            f"import resource; resource.prlimit({ada.record.pid}, resource.RLIMIT_CPU, (1, 1))",
            f"open({str(apart.homes / NUMBERS_FILE)!r})",
            "import os; os.setuid(0)",
            "import sysconfig; open(sysconfig.get_path('purelib') + '/evil.pth', 'w')",
        ):
            assert (await grace.run(attempt)).error == "PermissionError", attempt
        assert (await ada.run("open('secret').read()")).text == "'x'"
        # the control socket is open to sessions, but only the executor's own user may ask for anything there
        assert "only the executor's own user" in (await grace.run(_BE_A_GATEWAY.format(run=run))).message
        assert "Successfully installed" in (await ada.run(f"%pip install --no-index {wheel}")).text
        assert (await ada.run("import own_package; own_package.__file__")).text.startswith(f"'{apart.homes}/{ADA}/")
        assert (await grace.run("import own_package")).error == "ModuleNotFoundError"
        again = await executor.notebook(ADA)
        assert (await again.run("import own_package; own_package.answer")).text == "42"


async def test_sessions_compute_wait_and_are_shared_out_as_ever(apart: ApartExecutor) -> None:
    """Grants, limits, signals and adoption by another executor work across accounts; so does what is on the shelf.

    Memory is moved to a place of the user's own, below the directory that the admin named; nobody else may look there.
    """
    fill = "import torch; keep = torch.ones(1 << 20); sharedkernel.shelf['x'] = keep; keep.sum().item()"

    async with Executor(apart) as executor:
        notebook, other = await executor.notebooks(ADA, ADA)
        assert (await notebook.run(f"import sharedkernel; {fill}")).text == "1048576.0"
        await executor.replace()
        assert (await notebook.run("keep.sum().item()")).text == "1048576.0"
        assert (await other.run("import sharedkernel; sharedkernel.shelf['x'].sum().item()")).text == "1048576.0"
        await other.run("del sharedkernel.shelf['x']")
        assert "OutOfMemoryError" in (await notebook.run("torch.ones(1 << 31)")).error
        loop = asyncio.create_task(notebook.run("display('on')\nwhile True: torch.ones(9).sum()"))
        await notebook.displayed.wait()  # before, an interrupt would find nothing to interrupt
        assert (await other.run("torch = __import__('torch'); torch.ones(9).sum().item()")).text == "9.0"
        await executor.client.signal_session(notebook.session, signal.SIGINT)
        assert (await loop).error == "KeyboardInterrupt"
        await executor.client.offload_session(notebook.session)
        assert (await executor.session(notebook))["offloaded_bytes"] > 0
        uid = int((await notebook.run("import os; os.getuid()")).text)
        place = os.stat(apart.offload_directory / str(uid))
        assert (place.st_uid, place.st_mode & 0o777) == (uid, 0o700)
        assert (await notebook.run("keep.sum().item()")).text == "1048576.0"


async def test_sessions_start_at_home_or_below(apart: ApartExecutor) -> None:
    """In the notebook's folder if the home has it; a path that leads elsewhere is no place to start in.

    Others do not see a notebook's name, which may say much.
    """
    async with Executor(apart) as executor:
        ada = await executor.notebook(ADA)
        await ada.run("import os; os.makedirs('work', exist_ok=True)")
        where = "import os; os.getcwd()"
        below, grace, outside = await asyncio.gather(
            executor.notebook(ADA, notebook="work/a.ipynb", cwd="/home/on/laptop/work"),
            executor.notebook(GRACE),
            executor.notebook(ADA, notebook=f"../{GRACE}/a.ipynb", cwd=f"{apart.homes}/{ADA}/../{GRACE}"),
        )
        assert (await below.run(where)).text == repr(str(apart.homes / ADA / "work"))
        title = await grace.run(f"print(open('/proc/{below.record.pid}/cmdline').read())")
        assert title.text.rstrip("\0\n") == f"sharedkernel: {ADA}", "every account can read it"
        told = await outside.run(where)
        assert told.text.endswith(repr(str(apart.homes / ADA)))
        assert "is not in your home on the machine with the device" in told.text


async def test_status_says_what_keeps_users_apart(apart: ApartExecutor, process: ExecutorProcess) -> None:
    """With accounts of their own; without, one sentence says what that does not protect."""
    for serving, kind, said in (
        (apart, "users", "an account of their own"),
        (process, "none", "end other users' sessions"),
    ):
        async with Executor(serving) as executor:
            device = to_json(await executor.client.status())["device"]
        assert device["isolation"] == kind
        assert said in device["isolation_note"]
        assert device["isolation_note"] in serving.log()


async def test_a_session_s_processes_are_in_its_group(apart: ApartExecutor) -> None:
    """Where control groups can be made, whatever a session starts is ended with it at once, and the group goes."""
    async with Executor(apart) as executor:
        note = to_json(await executor.client.status())["device"]["isolation_note"]
        if "control group" in note and "no controller" not in note:
            pytest.skip(note)
        notebook = await executor.notebook()
        group = (await notebook.run("print(open('/proc/self/cgroup').read())")).text.rpartition("0::")[2].strip()
        child = "import subprocess; child = subprocess.Popen(['sleep', '600'], start_new_session=True); child.pid"
        child = psutil.Process(int((await notebook.run(child)).text))
        groups = await notebook.run(f"open('/proc/{child.pid}/cgroup').read().strip().endswith({group!r})")
        assert groups.text == "True"
        await executor.client.end_session(notebook.session)
        await until(lambda: not child.is_running(), "the child ended")


@pytest.mark.heavy
async def test_a_start_that_a_user_s_own_files_hold_up_ends(apart: ApartExecutor) -> None:
    """It is refused with a sentence that says where to look, its process is ended, and a later start is another one."""
    folder = ".ipython/profile_default/startup"
    write = f"import os; os.makedirs({folder!r}, exist_ok=True); open({folder + '/00.py'!r}, 'w').write({{!r}})"

    async with Executor(apart) as executor:
        first = await executor.notebook(HEDY)
        await first.run(write.format("while True: pass"))
        apart.options = ("--start-timeout", "1s")
        try:
            await executor.replace()
            with pytest.raises(Refused, match="startup files") as refused:
                await executor.client.start_session("held-up", Limits(user=HEDY))
            assert refused.value.reason == "start"
            await executor.until_ended("held-up", "its process is ended")
        finally:
            apart.options = ()
        await first.run(write.format("held_up = False"))
        await executor.replace()
        assert (await (await executor.notebook(HEDY)).run("held_up")).text == "False"
