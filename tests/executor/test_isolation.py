"""Sessions under users' own accounts: what the operating system lets them do, and to whom."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from sharedkernel import protocol
from sharedkernel.errors import ExecutorUnavailable, Refused
from sharedkernel.executor.accounts import NUMBERS_FILE
from sharedkernel.executor.directories import make_directory_of
from sharedkernel.executor.directory_lock import GATEWAY_LOCK
from sharedkernel.executor.packets import connect
from sharedkernel.executor.sessions import KeptSession, start_time
from sharedkernel.local_stack import free_port
from sharedkernel.paths import GATEWAY_DIRECTORY, KEEPER_SOCKET
from sharedkernel.protocol import Limits
from tests.executor import harness
from tests.executor.harness import PATIENCE, ExecutorProcess, Notebook, until
from tests.executor.isolation import FIRST_UID, GATEWAY, ApartExecutor, needs_root, readable_by_all
from tests.executor.test_packages import make_wheel

pytestmark = needs_root

#: users who have no account of that name: the sessions of those who do are in their real homes
ADA, GRACE, HEDY = USERS = ("sk-test-ada", "sk-test-grace", "sk-test-hedy")


class Executor(harness.Executor):
    """An executor whose sessions are those of such users."""

    async def notebook(self, user: str = ADA, session: str | None = None, **options: Any) -> Notebook:
        return await super().notebook(user, session, **options)


@pytest.fixture(scope="module", autouse=True)
def strangers() -> None:
    """See that nobody on this machine is called as the users here are."""
    assert not {*USERS, ADA.title()} & {entry.pw_name for entry in pwd.getpwall()}


@pytest.fixture(scope="module")
def apart() -> Iterator[ApartExecutor]:
    """Yield an executor that keeps users apart."""
    process = ApartExecutor()
    yield process
    process.close()


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


def test_a_session_has_its_user_s_rights_and_no_more(apart: ApartExecutor) -> None:
    """Every thread runs under the user's number, without capabilities, and can gain none."""

    async def main() -> None:
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

    asyncio.run(main())


def test_users_reach_nothing_of_each_other(apart: ApartExecutor) -> None:
    """Neither files nor processes, nor the sockets, connection files and logs of sessions; not even one's own keys."""

    async def main() -> None:
        async with Executor(apart) as executor:
            ada, grace = await executor.notebook(ADA), await executor.notebook(GRACE)
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
                f"import socket as s; s.socket(s.AF_UNIX, s.SOCK_SEQPACKET).connect({run + '/keeper.sock'!r})",
                f"import socket as s; s.socket(s.AF_UNIX, s.SOCK_SEQPACKET).connect({run + '/warm.sock'!r})",
                f"import os; os.kill({ada.record.pid}, 9)",
                f"open('/proc/{ada.record.pid}/environ')",
                f"open('/proc/{ada.record.pid}/mem')",
                f"import os; os.listdir('/proc/{ada.record.pid}/fd')",
                f"import resource; resource.prlimit({ada.record.pid}, resource.RLIMIT_CPU, (1, 1))",
                f"open({str(apart.homes / NUMBERS_FILE)!r})",
                "import os; os.setuid(0)",
            ):
                assert (await grace.run(attempt)).error == "PermissionError", attempt
            assert (await ada.run("open('secret').read()")).text == "'x'"

    asyncio.run(main())


_SAY_HELLO = """if True:
    import socket
    from sharedkernel import protocol
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(30)
    peer.connect({path!r})
    peer.sendall(protocol.encode(protocol.Hello(version=protocol.PROTOCOL_VERSION, role="gateway")))
    data = b""
    while more := peer.recv(65536):
        data += more
    print(data)
"""


def test_a_session_is_no_gateway(apart: ApartExecutor) -> None:
    """The control socket is open to sessions, but only the executor's own user may ask for anything there."""

    async def main() -> None:
        async with Executor(apart) as executor:
            notebook = await executor.notebook()
            code = _SAY_HELLO.format(path=str(apart.runtime_directory / "executor.sock"))
            assert "only the executor's own user" in (await notebook.run(code)).text

    asyncio.run(main())


_BE_A_GATEWAY = """if True:
    import asyncio, os, pwd, sys
    from types import SimpleNamespace
    from pathlib import Path
    from tests.executor.harness import Executor
    account = pwd.getpwnam(sys.argv[2])
    os.setgroups([]); os.setgid(account.pw_gid); os.setuid(account.pw_uid)
    async def main():
        process = SimpleNamespace(poll=lambda: None)
        process = SimpleNamespace(runtime_directory=Path(sys.argv[1]), process=process, log=lambda: "")
        executor = Executor(process)
        await executor.client.connect()
        async with executor:
            notebook = await executor.notebook(sys.argv[3])
            print((await notebook.run("import os; os.getuid()")).text)
    asyncio.run(main())
"""


@pytest.mark.parametrize(("account", "is_heard"), [(GATEWAY, True), ("daemon", False)])
def test_the_gateway_needs_no_root(apart: ApartExecutor, account: str, is_heard: bool) -> None:
    """The account that was named for it starts sessions and speaks to them; no other account does."""
    command = readable_by_all([sys.executable, "-c", _BE_A_GATEWAY, str(apart.runtime_directory), account, ADA])
    python_path = str(Path(__file__).parents[2])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path, "HOME": "/", "IPYTHONDIR": "/nonexistent"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if is_heard:
        assert int(done.stdout) in range(FIRST_UID, FIRST_UID + 100), done.stderr
    else:
        assert done.stdout == ""
        assert "closed the connection" in done.stderr, done.stderr


@pytest.fixture
def gateways_own() -> Iterator[Path]:
    """Yield a directory of the gateway's account, which reaches it."""
    account = pwd.getpwnam(GATEWAY)
    with tempfile.TemporaryDirectory(prefix="sk-gateway-") as directory:
        os.chown(directory, account.pw_uid, account.pw_gid)
        yield Path(directory)


def test_a_whole_gateway_without_root_serves_and_is_drained(apart: ApartExecutor, gateways_own: Path) -> None:
    """In a runtime directory that is root's it lacks nothing: it complains of nothing, and goes when it is asked to."""
    port = free_port()
    account = pwd.getpwnam(GATEWAY)
    become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    command = readable_by_all(
        [*become, sys.executable, "-m", "sharedkernel", "gateway", "--port", str(port), "--runtime-dir",
         str(apart.runtime_directory)]
    )  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(gateways_own),
                   "JUPYTER_TOKEN": "secret"}  # fmt: skip

    def ask(method: str, path: str) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, data=b"{}")
        request.add_header("Authorization", "token secret")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return int(answer.status), answer.read()
        except OSError:
            return 0, b""

    with (gateways_own / "log").open("w+") as log:
        gateway = subprocess.Popen(command, cwd="/", env=environment, stdout=log, stderr=log)
        try:
            while ask("GET", "/readyz")[0] != 200 and gateway.poll() is None:
                time.sleep(0.1)
            status, kernel = ask("POST", "/api/kernels")
            assert status == 201
            assert ask("DELETE", f"/api/kernels/{json.loads(kernel)['id']}?linger=0")[0] == 204
            drain = subprocess.run([*command, "--drain"], cwd="/", env=environment, check=False, timeout=PATIENCE)
            assert drain.returncode == 0
            assert gateway.wait(PATIENCE) == 0
        finally:
            gateway.kill()
            gateway.wait()
            log.seek(0)
            said = log.read()
    assert "drained" in said
    assert [line for line in said.splitlines() if line.startswith(("[W", "[E", "[C", "Traceback"))] == []
    audit = apart.runtime_directory / "gateway" / "audit.jsonl"
    assert '"start session"' in audit.read_text()
    assert [(path.stat().st_uid, path.stat().st_mode & 0o777) for path in (audit.parent, audit)] == [
        (account.pw_uid, 0o700),
        (account.pw_uid, 0o600),
    ]


def test_another_account_does_not_get_the_files_of_a_gateway() -> None:
    """The executor does not start, and says what is whose."""
    account = pwd.getpwnam(GATEWAY)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o711)
        make_directory_of(directory, GATEWAY_DIRECTORY, account.pw_uid, account.pw_gid)
        options = ["--isolate", "users", "--homes", str(directory / "homes"), "--gateway-user", "daemon"]
        command = [sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", name, *options]
        done = subprocess.run(readable_by_all(command), capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 1
        expected = f"{directory / GATEWAY_DIRECTORY} belongs to user id {account.pw_uid}, not "
        assert done.stderr.splitlines()[-1].startswith(f"sharedkernel: {expected}")
        assert not (directory / GATEWAY_LOCK).exists()


def test_sessions_compute_wait_and_are_shared_out_as_ever(apart: ApartExecutor) -> None:
    """Grants, limits, signals and adoption by another executor work across accounts; so does what is on the shelf."""
    fill = "import torch; keep = torch.ones(1 << 20); sharedkernel.shelf['x'] = keep; keep.sum().item()"

    async def main() -> None:
        async with Executor(apart) as executor:
            notebook, other = await executor.notebook(ADA), await executor.notebook(ADA)
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
            assert (await notebook.run("keep.sum().item()")).text == "1048576.0"

    asyncio.run(main())


def test_what_a_user_installs_reaches_nobody_else(apart: ApartExecutor, tmp_path: Path) -> None:
    """It lies in the user's home, for all of their sessions; the environment itself they cannot write to."""
    wheel = shutil.copy(make_wheel(tmp_path), apart.directory)
    os.chmod(wheel, 0o644)

    async def main() -> None:
        async with Executor(apart) as executor:
            ada, grace = await executor.notebook(ADA), await executor.notebook(GRACE)
            assert "Successfully installed" in (await ada.run(f"%pip install --no-index {wheel}")).text
            assert (await ada.run("import own_package; own_package.__file__")).text.startswith(f"'{apart.homes}/{ADA}/")
            assert (await grace.run("import own_package")).error == "ModuleNotFoundError"
            again = await executor.notebook(ADA)
            assert (await again.run("import own_package; own_package.answer")).text == "42"
            write = "import sysconfig; open(sysconfig.get_path('purelib') + '/evil.pth', 'w')"
            assert (await ada.run(write)).error == "PermissionError"

    asyncio.run(main())


def test_sessions_start_at_home_or_below(apart: ApartExecutor) -> None:
    """In the notebook's folder if the home has it; a path that leads elsewhere is no place to start in."""

    async def main() -> None:
        async with Executor(apart) as executor:
            ada = await executor.notebook(ADA)
            await ada.run("import os; os.makedirs('work', exist_ok=True)")
            where = "import os; os.getcwd()"
            below = await executor.notebook(ADA, notebook="work/a.ipynb", cwd="/home/on/laptop/work")
            assert (await below.run(where)).text == repr(str(apart.homes / ADA / "work"))
            outside = await executor.notebook(
                ADA, notebook=f"../{GRACE}/a.ipynb", cwd=f"{apart.homes}/{ADA}/../{GRACE}"
            )
            told = await outside.run(where)
            assert told.text.endswith(repr(str(apart.homes / ADA)))
            assert "is not in your home on the machine with the device" in told.text

    asyncio.run(main())


def test_status_says_what_keeps_users_apart(apart: ApartExecutor, process: ExecutorProcess) -> None:
    """With accounts of their own; without, one sentence says what that does not protect."""

    async def main() -> None:
        async with Executor(apart) as executor:
            device = (await executor.client.status())["device"]
            assert device["isolation"] == "users"
            assert "an account of their own" in device["isolation_note"]
        async with Executor(process) as executor:
            device = (await executor.client.status())["device"]
            assert device["isolation"] == "none"
            assert "end other users' sessions" in device["isolation_note"]
            assert device["isolation_note"] in process.log()

    asyncio.run(main())


def test_a_session_s_processes_are_in_its_group(apart: ApartExecutor) -> None:
    """Where control groups can be made, whatever a session starts is ended with it at once, and the group goes."""

    async def main() -> None:
        async with Executor(apart) as executor:
            note = (await executor.client.status())["device"]["isolation_note"]
            if "control group" in note and "no controller" not in note:
                pytest.skip(note)
            notebook = await executor.notebook()
            group = (await notebook.run("print(open('/proc/self/cgroup').read())")).text.rpartition("0::")[2].strip()
            child = "import subprocess; child = subprocess.Popen(['sleep', '600'], start_new_session=True); child.pid"
            child = psutil.Process(int((await notebook.run(child)).text))
            groups = await notebook.run(f"open('/proc/{child.pid}/cgroup').read().strip().endswith({group!r})")
            assert groups.text == "True"
            await executor.client.end_session(notebook.session)

            async def gone() -> bool:
                return not child.is_running()

            await until(gone, "the child ended")

    asyncio.run(main())


def test_memory_is_moved_to_a_place_of_the_user_s_own(apart: ApartExecutor) -> None:
    """Below the directory that the admin named; nobody else can look into it."""

    async def main() -> None:
        async with Executor(apart) as executor:
            notebook = await executor.notebook()
            assert (await notebook.run("import torch; x = torch.ones(1 << 22); x.sum().item()")).text == f"{1 << 22}.0"
            await executor.client.offload_session(notebook.session)
            assert (await executor.session(notebook))["offloaded_bytes"] > 0
            uid = int((await notebook.run("import os; os.getuid()")).text)
            place = os.stat(apart.offload_directory / str(uid))
            assert (place.st_uid, place.st_mode & 0o777) == (uid, 0o700)
            assert (await notebook.run("x.sum().item()")).text == f"{1 << 22}.0"

    asyncio.run(main())


def test_what_was_forked_before_users_were_kept_apart_serves_nobody_new() -> None:
    """Sessions that run go on as they are; a spare, which could still gain rights, is no user's any more."""
    rights = "import os; os.getuid(), 'NoNewPrivs:\\t1' in open('/proc/self/status').read()"

    class LaterApart(ApartExecutor):
        is_apart = False

    process = LaterApart()

    async def main() -> None:
        async with Executor(process) as executor:
            before = await executor.notebook()
            assert (await before.run(rights)).text == "(0, False)"

            async def has_spare() -> bool:
                return len(list(process.runtime_directory.glob("s/*.json"))) == 2

            await until(has_spare, "there is a spare")
            process.is_apart = True
            await executor.replace()
            assert (await before.run(rights)).text == "(0, False)"
            after = await executor.notebook()
            uid, is_held = ast.literal_eval((await after.run(rights)).text)
            assert uid in range(FIRST_UID, FIRST_UID + 100)
            assert is_held

    try:
        asyncio.run(main())
    finally:
        process.close()


def kept_spares(process: ExecutorProcess) -> list[KeptSession]:
    """Return the spares as the next executor would find them."""
    keeper = connect(str(process.runtime_directory / KEEPER_SOCKET), protocol.FromKeeper)
    keeper.send(protocol.GetAll())
    found = []
    while isinstance((answer := keeper.receive())[0], protocol.Kept):
        for descriptor in answer[1]:
            os.close(descriptor)
        found.append(msgspec.msgpack.decode(answer[0].data, type=KeptSession))
    keeper.close()
    return [kept for kept in found if kept.session is None]


async def a_spare(process: ExecutorProcess) -> KeptSession:
    """Return a spare, once there is one."""

    async def spare() -> KeptSession | None:
        return next(iter(kept_spares(process)), None)

    found: KeptSession = await until(spare, "there is a spare")
    return found


def test_spares_that_were_forked_for_users_outlive_the_executor(apart: ApartExecutor) -> None:
    """The next executor keeps them: they were made ready for what it does with them."""

    async def main() -> None:
        async with Executor(apart) as executor:
            spare = await a_spare(apart)
            await executor.replace()
            await executor.notebook()
            assert start_time(spare.pid) == spare.started

    asyncio.run(main())


def test_a_session_that_was_not_yet_its_user_s_is_not_adopted(apart: ApartExecutor) -> None:
    """The executor ended between giving a spare to a user and the spare's becoming the user: it still has rights."""

    async def main() -> None:
        async with Executor(apart) as executor:
            spare = await a_spare(apart)
            os.kill(spare.pid, signal.SIGSTOP)  # it does not hear that it is given away
            start = asyncio.create_task(executor.client.start_session("half-given", Limits(user=ADA)))

            async def is_given() -> bool:
                return "half-given" in [record.session for record in await executor.client.sessions()]

            await until(is_given, "the spare is given away")
            await executor.replace()
            with pytest.raises(ExecutorUnavailable):
                await start
            assert not await is_given()

            async def is_gone() -> bool:
                return start_time(spare.pid) != spare.started

            await until(is_gone, "it is ended")
            assert (await (await executor.notebook()).run("import os; os.getuid() >= 1000")).text == "True"

    asyncio.run(main())


def test_a_start_that_a_user_s_own_files_hold_up_ends(apart: ApartExecutor) -> None:
    """It is refused with a sentence that says where to look, its process is ended, and a later start is another one."""
    folder = ".ipython/profile_default/startup"
    write = f"import os; os.makedirs({folder!r}, exist_ok=True); open({folder + '/00.py'!r}, 'w').write({{!r}})"

    async def main() -> None:
        async with Executor(apart) as executor:
            first = await executor.notebook(HEDY)
            await first.run(write.format("while True: pass"))
            apart.options = ("--start-timeout", "1s")
            try:
                await executor.replace()
                with pytest.raises(Refused, match="startup files") as refused:
                    await executor.client.start_session("held-up", Limits(user=HEDY))
                assert refused.value.reason == "start"

                async def is_gone() -> bool:
                    return "held-up" not in {record.session for record in await executor.client.sessions()}

                await until(is_gone, "its process is ended")
            finally:
                apart.options = ()
            await first.run(write.format("held_up = False"))
            await executor.replace()
            assert (await (await executor.notebook(HEDY)).run("held_up")).text == "False"

    asyncio.run(main())


def test_numbers_stay_and_are_nobody_else_s(apart: ApartExecutor) -> None:
    """A user has the same number in every session and after a restart; names that look alike have others."""

    async def main() -> None:
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

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--uid-range", "0-10"], "takes in user ids of the system's own"),
        (["--uid-range", "many"], "'many' is no range of user ids"),
        (["--uid-range", "300000-200000"], "the first comes before the last"),
    ],
)
def test_a_wrong_range_gets_one_sentence(options: list[str], expected: str, tmp_path: Path) -> None:
    """The executor does not start."""
    command = [sys.executable, "-m", "sharedkernel", "executor", "--runtime-dir", str(tmp_path / "run"), *options]
    done = subprocess.run([*command, "--homes", str(tmp_path / "h")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
