"""``sharedkernel cluster`` without Ray: wrong use, clusters that are refused, and what people are shown."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sharedkernel
from sharedkernel.cluster.commands import host_entry, merge_hosts_known, messages
from sharedkernel.cluster.host_commands import left_words
from sharedkernel.cluster.launch import ends_with_ray, host_environment, start_detached
from sharedkernel.cluster.settings import ClusterSettings, readable_token, shared_account
from sharedkernel.errors import ConfigError
from sharedkernel.status.text import NOTHING
from tests.cli.support import wait_until
from tests.command import run_here

PACKAGE = Path(sharedkernel.__file__).parent
COMMANDS = ("up", "status", "drain", "undrain", "forget", "down")


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "cluster.key"
    path.touch(mode=0o600)
    path.write_text("0123456789" * 4)
    return str(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str) -> None:
    """With an example."""
    done = run_here("cluster", command, "--help")
    assert done.returncode == 0
    assert f"    sharedkernel cluster {command}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["frobnicate"], "there is no command 'frobnicate' of a cluster; they are up, status"),
        (["up"], "name the file of the cluster's secret with --cluster-key, and its fronts"),
        (["up", "--cluster-key", "/nowhere", "--fronts", "http://a"], "the cluster's key /nowhere cannot be read"),
        (["up", "--cluster-key", "{key}", "--fronts", "a"], "fronts names 'a'; write URLs"),
        (["up", "--cluster-key", "{key}", "--fronts", "http://a", "--devices", "x"], "executors names 'x'"),
        (["up", "--cluster-key", "{key}", "--fronts", "http://a", "--gateway-options='"], "check its quotes"),
        (["up", "--cluster-key", "{key}", "--fronts", "http://a"], "each user can read the others' files"),
        (["drain", "h1", "h2"], "name the host to drain, such as `sharedkernel cluster drain h2`"),
        (["drain", "h1", "--timeout", "soon"], "--timeout: 'soon'"),
        (["status", "h1"], "'h1' is not understood; see `sharedkernel cluster status --help`"),
    ],
)
def test_wrong_use_is_one_sentence_and_2(arguments: list[str], sentence: str, key: str) -> None:
    """Nothing is asked of Ray or a front."""
    done = run_here("cluster", *(argument.format(key=key) for argument in arguments))
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_token_that_others_can_read_is_refused(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray get-auth-token --generate` makes one that is."""
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    up = ["cluster", "up", "--cluster-key", key, "--fronts", "http://a"]
    done = run_here(*up, "--single-user")
    assert done.returncode == 2
    assert f"others can read Ray's token in {token} (mode 0644)" in done.stderr
    assert "With --insecure it is done all the same" in done.stderr
    token.chmod(0o600)
    assert readable_token(os.environ) is None
    assert readable_token({"RAY_AUTH_TOKEN": "x", "HOME": str(tmp_path)}) is None


def test_several_users_under_one_account_are_refused() -> None:
    """Unless one person uses the cluster, or something else starts the hosts."""
    refused = ("", "--isolate off --uid-range 1-2")
    for options in (*refused, "--isolate users", "--isolate=users", "--uid-range 200000-299999"):
        settings = ClusterSettings(key_file="k", fronts=[], executor_options=options)
        assert bool(shared_account(settings, is_single=False)) == (options in refused), options
        assert shared_account(settings, is_single=True) is None


def test_a_host_serves_as_many_devices_as_its_node_has() -> None:
    """By their physical numbers; the host's name stands where options want it."""
    settings = ClusterSettings(
        key_file="k", fronts=["http://a", "http://b"], runtime_dir="/run/{host}", executor_options="--policy fair",
        gateway_options=["--certfile", "/etc/{host}.crt"],
    )  # fmt: skip
    devices = settings.choose_devices(2, ["cuda:0", "cuda:1", "cuda:2"])
    assert devices == ["cuda:0", "cuda:1"]
    command = settings.command(["sharedkernel"], "h1", devices, Path("/run/h1/cluster.key"))
    assert command == [
        "sharedkernel", "host", "--runtime-dir", "/run/h1", "--devices", "cuda:0,cuda:1",
        "--executor-options=--policy fair", "--", "--cluster-key", "/run/h1/cluster.key", "--host-name", "h1",
        "--fronts", "http://a,http://b", "--certfile", "/etc/h1.crt",
    ]  # fmt: skip
    assert settings.choose_devices(2, []) == ["host", "host:1"]
    with pytest.raises(ConfigError, match="has 2 of the resource `sharedkernel`, and 1 devices"):
        settings.choose_devices(2, ["cuda:0"])


def test_services_get_nothing_of_a_ray_worker_s(tmp_path: Path) -> None:
    """Neither its variables nor its place in a session, nor a blocked signal."""
    assert host_environment({"CUDA_VISIBLE_DEVICES": "1", "RAY_AUTH_TOKEN": "t", "OMP_NUM_THREADS": "1", "A": "b"}) == {
        "A": "b"
    }
    code = (
        "import json, os, pathlib, signal; print(json.dumps([os.getpid(), os.getsid(0), os.getppid(), "
        "[int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])], os.getpriority(os.PRIO_PROCESS, 0)]))"
    )
    script = (
        "import os, signal, sys; from pathlib import Path; from sharedkernel.cluster.launch import start_detached\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); os.nice(5)\n"
        "start_detached(sys.argv[2:], Path(sys.argv[1])); print(os.getpid())"
    )
    log = tmp_path / "log"
    worker = subprocess.run(
        [sys.executable, "-c", script, str(log), sys.executable, "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    wait_until(lambda: log.read_text().endswith("\n"), "it has printed")
    pid, session, parent, blocked, nice = json.loads(log.read_text().splitlines()[-1])
    assert pid == session
    assert parent != int(worker.stdout)
    assert blocked == []
    assert nice == 0 or os.getuid()
    assert not ends_with_ray()


def test_a_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    """A new one is begun; the one before is kept."""
    log = tmp_path / "host.log"
    log.write_bytes(b"old\n" + bytes(17 * 1024**2))
    start_detached([sys.executable, "-c", "print('new')"], log)
    wait_until(lambda: log.read_text() == "new\n", "it has printed")
    assert (tmp_path / "host.1").read_bytes().startswith(b"old")


FRONT: dict[str, Any] = {
    "name": "h1", "answering": True, "version": "1.0", "devices": ["h1/host"], "num_sessions": 2, "cordoned": True,
    "drained": False, "in_ray": True, "adopted": False, "message": None,
    "users": {
        "ada": {"sessions": 1, "has_left": True, "lingers": False, "has_shelf": True},
        "bob": {"sessions": 2, "has_left": True, "lingers": True, "has_shelf": False},
    },
}  # fmt: skip


def host_words(host: dict[str, Any]) -> tuple[str, str]:
    """Return what a table says of a host."""
    entry = host_entry(host)
    return entry.state_words(), entry.ray_words()


def test_what_a_front_and_ray_know_is_merged() -> None:
    """Ray knows best who is in it, and why services do not run; a front who answers."""
    members = [
        {"name": "h1", "in_ray": False, "has_left": False, "problem": None, "adopted": True},
        {"name": "h2", "in_ray": True, "has_left": False, "problem": "no resource."},
    ]
    first, second = merge_hosts_known([FRONT], members)
    assert host_words(first) == ("answers, draining", "not in Ray, adopted")
    assert host_words(second) == (NOTHING, "in Ray")
    assert messages([first, second]) == ["h2: no resource."]
    assert left_words(first) == ["ada: 1 session and a shelf", "bob: 2 sessions and a session to have back"]
    (alone,) = merge_hosts_known([FRONT | {"answering": False, "drained": True}], ())
    assert host_words(alone) == ("away, drained", "in Ray, started")


def test_only_three_modules_import_ray() -> None:
    """And no gateway, front, executor or session does, so that they run where it is not installed."""
    found = set()
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    for path in (path for path, source in sources.items() if re.search(r"\bray\b", source)):
        for node in ast.walk(ast.parse(sources[path])):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "ray" for name in names):
                found.add(str(path.relative_to(PACKAGE)))
    assert found == {"cluster/agent.py", "cluster/directory.py"}


@pytest.mark.parametrize(
    ("options", "without"), [([], "sharedkernel.gateway.hosts"), (["--front"], "sharedkernel.cluster")]
)
def test_a_gateway_imports_no_more_of_a_cluster_than_it_needs(tmp_path: Path, options: list[str], without: str) -> None:
    """One of its own no fronts, a front no commands, and neither Ray, as the interpreter itself reports."""
    command = [sys.executable, "-X", "importtime", "-m", "sharedkernel", "gateway", "--check-config", *options]
    done = subprocess.run(
        [*command, "--runtime-dir", str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "sharedkernel.gateway.kernels.manager" in modules
    assert {name for name in modules if name.partition(".")[0] == "ray" or name.startswith(without)} == set()
