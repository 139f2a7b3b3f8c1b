"""What can be tried by who has a token, is another user of the host, or does not know a session's key."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from jupyter_client.session import Session as MessageSession

import sharedkernel
from sharedkernel.errors import ConfigError
from sharedkernel.paths import (
    DESCRIPTOR_SOCKET,
    EXECUTOR_SOCKET,
    WARM_PARENT_SOCKET,
    make_private_directory,
)
from tests.attacks.conftest import Scene
from tests.fuzz.conftest import attached, execute
from tests.gateway.client import PATIENCE

#: user id of nobody in particular
_NOBODY = 65534
#: becomes the user argv[1] and fails if anything opens or connects for it
_TRY_ALL = """if True:
    import os, socket, sys
    nobody = int(sys.argv[1])
    os.setgroups([])
    os.setresgid(nobody, nobody, nobody)
    os.setresuid(nobody, nobody, nobody)
    for path in sys.argv[2:]:
        for attempt in (lambda: open(path), lambda: socket.socket(socket.AF_UNIX).connect(path)):
            try:
                attempt()
            except PermissionError:
                continue
            sys.exit(path)
"""
#: modules that run code that they read
_RUN_WHAT_THEY_READ = {
    "pickle",
    "cPickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "multiprocessing",
}
#: builtins that run text
_RUN_TEXT = {"eval", "exec", "__import__"}
#: whose `load` and `loads` are known to run nothing
_ONLY_READ = {"json", "self", "self._certificate"}


@pytest.mark.heavy
async def test_anothers_place_is_not_ones_own(scene: Scene) -> None:
    """Who names the place of another user's notebook, as its relay does, gets a session of her own."""
    kernel = await scene.mallory.start(
        KERNEL_CLIENT_KEY="graces-place", KERNEL_NOTEBOOK="private/plan.ipynb", KERNEL_USERNAME="grace"
    )
    assert kernel != scene.kernel
    assert await execute(scene.mallory, kernel, "'secret' in globals()") == "False"
    said = await execute(scene.mallory, kernel, "%shared attach")
    assert "plan" not in said.replace("private/plan.ipynb", "")
    await scene.mallory.end(kernel)
    assert (await scene.grace.request("GET", f"/api/kernels/{scene.kernel}")).status == 200


async def test_sessions_are_not_on_the_network(scene: Scene) -> None:
    """They listen in a directory that only their own user may enter, each with a key of its own in its file."""
    connection = (await scene.record()).connection
    assert connection["transport"] == "ipc"
    directory = Path(connection["ip"]).parent
    assert stat.S_IMODE(directory.stat().st_mode) & 0o077 == 0
    files = list(directory.glob("*.json"))
    assert files
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    keys = {file.read_text().partition('"key"')[2].partition(",")[0] for file in files}
    assert len(keys) == len(files)
    assert len(connection["key"]) >= 32
    assert connection["signature_scheme"] == "hmac-sha256"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
async def test_another_user_of_the_host_reaches_no_socket_and_no_key(scene: Scene) -> None:
    """Neither the sockets nor the files of the runtime directory open for any other user id."""
    connection = (await scene.record()).connection
    run = scene.stack.runtime_directory
    paths = [run / name for name in (EXECUTOR_SOCKET, DESCRIPTOR_SOCKET, WARM_PARENT_SOCKET)]
    attempts = [*map(str, paths), f"{connection['ip']}-1", connection["ip"].removesuffix("-ipc") + ".json"]
    command = [sys.executable, "-c", _TRY_ALL, str(_NOBODY), *attempts]
    await asyncio.to_thread(subprocess.run, command, check=True)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("a link", "is not a directory"),
        ("open", "is open to other users"),
        pytest.param(
            "another's",
            "belongs to another user",
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can make somebody else's"),
        ),
    ],
)
@pytest.mark.parametrize("or_roots", [False, True])
def test_what_somebody_else_put_in_the_place_of_a_runtime_directory_is_not_used(
    tmp_path: Path, what: str, sentence: str, or_roots: bool
) -> None:
    """Its default place is in `/tmp`, where everybody may make it first; and nothing is changed of what is there."""
    place, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    match what:
        case "a link":
            place.symlink_to(elsewhere)
        case "open":
            place.mkdir()
            place.chmod(0o770)
        case _:
            place.mkdir(mode=0o700)
            os.chown(place, _NOBODY, _NOBODY)
    before = place.lstat()
    with pytest.raises(ConfigError, match=sentence):
        make_private_directory(place, or_roots=or_roots)
    assert place.lstat() == before
    assert list(elsewhere.iterdir()) == []


async def test_a_message_without_the_sessions_key_is_not_heard(scene: Scene, tmp_path: Path) -> None:
    """Code that is not signed, or with another key, runs on no channel; the session goes on with who has the key."""
    connection = (await scene.record()).connection
    target = tmp_path / "ran"
    code = f"open({str(target)!r}, 'w').close()"
    context = zmq.Context()
    try:
        for key in (b"", b"0" * 64):
            forger = MessageSession(key=key, signature_scheme="hmac-sha256")
            for channel in ("shell", "control"):
                with context.socket(zmq.DEALER) as dealer:
                    dealer.linger = 1000
                    dealer.connect(f"ipc://{connection['ip']}-{connection[f'{channel}_port']}")
                    request = forger.msg("execute_request", {"code": code, "silent": False})
                    forger.send(dealer, request)
                    assert not dealer.poll(300)
    finally:
        context.term()
    await scene.grace_still_works()
    assert not target.exists()


@pytest.mark.heavy
def test_nothing_in_the_package_can_unpickle() -> None:
    """Nothing runs text, or is imported that runs what it reads; and nothing loads arrays, which may be a pickle."""
    suspect = _RUN_WHAT_THEY_READ | _RUN_TEXT | {"load", "loads"}
    sources = {path: path.read_text() for path in Path(sharedkernel.__file__).parent.rglob("*.py")}
    for path in (path for path, source in sources.items() if suspect & set(re.findall(r"\w+", source))):
        for node in ast.walk(ast.parse(sources[path])):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            assert not _RUN_WHAT_THEY_READ & {name.partition(".")[0] for name in names}, path
            assert not {"load", "loads"} & set(names), path
            if isinstance(node, ast.Name):
                assert node.id not in _RUN_TEXT, path
            if isinstance(node, ast.Attribute) and node.attr in ("load", "loads"):
                assert ast.unparse(node.value) in _ONLY_READ, path


@pytest.mark.heavy
async def test_peers_that_say_nothing_keep_nobody_waiting(scene: Scene) -> None:
    """Connections to every socket that stay silent, or stop in the middle of a message, stand in nobody's way."""
    async with asyncio.timeout(PATIENCE):
        with contextlib.ExitStack() as peers:
            for number in range(40):
                peer = peers.enter_context(socket.socket(socket.AF_UNIX))
                peer.connect(str(scene.stack.runtime_directory / EXECUTOR_SOCKET))
                peer.sendall(b"\x00\x0f\xff\xff" + bytes(number))
            for name in (DESCRIPTOR_SOCKET, WARM_PARENT_SOCKET):
                peer = peers.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                peer.connect(str(scene.stack.runtime_directory / name))
            await scene.grace_still_works()
            for _ in range(6):  # more than there are spares
                await scene.mallory.end(await scene.mallory.start())


#: a session's own code greets its executor in the session's name, with a connection that is somebody else's
_GREET_AGAIN = """if True:
    import os, socket
    from sharedkernel import protocol
    peer = socket.socket(socket.AF_UNIX)
    peer.connect({path!r})
    hello = protocol.SessionHello(version=protocol.PROTOCOL_VERSION, process={name!r},
                                  connection={connection!r}, memory=protocol.Memory(), data_bytes=0)
    peer.sendall(protocol.encode(hello))
    print(next(protocol.Decoder(protocol.ToSession).feed(peer.recv(65536))))
    peer.close()
"""


async def test_a_session_does_not_have_gateways_connect_to_another_one(scene: Scene) -> None:
    """Where a session is reached was said before its user's code ran; what that code says of it does not count."""
    async with asyncio.timeout(PATIENCE):
        graces = await scene.record()
        # Ids are the gateway's to give; `auth/test_ownership.py` tries what can be done by one.
        wanted = {"name": "shared-gpu", "kernel_id": scene.kernel, "id": scene.kernel, "env": {}}
        kernel = (await scene.mallory.request("POST", "/api/kernels", wanted)).body["id"]
        assert kernel != scene.kernel
        own = await scene.record(kernel)
        path = str(scene.stack.runtime_directory / EXECUTOR_SOCKET)
        name = Path(own.connection["ip"]).name.removesuffix("-ipc")
        async with attached(scene.mallory, kernel) as channels:
            code = _GREET_AGAIN.format(path=path, name=name, connection={**graces.connection, "key": ""})
            assert "Welcome" in (await channels.run(code))["text"]
            assert (await scene.record(kernel)).connection == own.connection
        await scene.mallory.end(kernel)
