"""`sharedkernel install`, as a person runs it."""

from __future__ import annotations

import json
import stat
import sys
from functools import partial
from pathlib import Path

import pexpect
import pytest

from sharedkernel.client.gateway.credentials import (
    Credentials,
    check_token,
    check_url,
    credentials_path,
    find_credentials,
    store_credentials,
)
from sharedkernel.errors import ConfigError
from sharedkernel.local_stack import free_port
from tests.client.relay.support import TIMEOUT, GatewayProcess, Notebook
from tests.command import run_apart, run_here


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give Jupyter fresh folders, here and in the processes started from here."""
    for name in ("CONFIG", "DATA"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.delenv("JUPYTER_PATH")
    return tmp_path


#: runs the command to its end
install = partial(run_apart, "install")


def test_nothing_typed_is_no_traceback(home: Path, stock_gateway: GatewayProcess) -> None:
    """The end of a terminal's input is told as a token that is missing."""
    command = ["-m", "sharedkernel", "install", "--gateway-url", stock_gateway.url, "--user"]
    terminal = pexpect.spawn(sys.executable, command, timeout=TIMEOUT, encoding="utf-8")
    terminal.expect_exact("Your token for")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus != 0
    assert "which token?" in terminal.before
    assert "Traceback" not in terminal.before


@pytest.mark.heavy
def test_an_installed_kernel_works_without_any_variable(home: Path, stock_gateway: GatewayProcess) -> None:
    """Address and token are kept for its user alone, and the relay finds them.

    A token on standard input is in no list of processes and in no history of a shell.
    """
    typed = f"{stock_gateway.token}\n"
    ended = install("--gateway-url", stock_gateway.url + "/", "--token", "-", "--user", typed=typed)
    assert ended.returncode == 0, ended.stderr
    kept = home / "config" / "sharedkernel" / "shared-gpu.json"
    assert str(kept) in ended.stdout
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    spec_directory = home / "data" / "kernels" / "shared-gpu"
    assert str(spec_directory) in ended.stdout
    assert stock_gateway.token not in (spec_directory / "kernel.json").read_text()
    assert {"logo-32x32.png", "logo-64x64.png", "logo-svg.svg"} < {path.name for path in spec_directory.iterdir()}
    with Notebook(None, None) as notebook:
        assert notebook.run("print(1 + 1)").text() == "2\n"


def test_two_gateways_have_a_kernel_each(home: Path, stock_gateway: GatewayProcess) -> None:
    """The second one's name leads to its own address and token."""
    prefix = home / "environment"
    ended = install(
        "--prefix", str(prefix), "--name", "big-gpu", "--display-name", "Big GPU",
        SHAREDKERNEL_GATEWAY_URL=stock_gateway.url, SHAREDKERNEL_TOKEN=stock_gateway.token,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    spec = json.loads((prefix / "share/jupyter/kernels/big-gpu/kernel.json").read_text())
    assert spec["display_name"] == "Big GPU"
    assert spec["argv"][-2:] == ["--name", "big-gpu"]
    assert find_credentials("big-gpu", {}) == Credentials(url=stock_gateway.url, token=stock_gateway.token)
    with pytest.raises(ConfigError, match="sharedkernel install"):
        find_credentials("shared-gpu", {})


@pytest.mark.heavy
def test_in_an_image_each_hub_s_server_has_its_own_token(
    home: Path, stock_gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment keeps the address, for everybody to read, and no token; a kernel works with the server's."""
    prefix = home / "image"
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(prefix / "etc" / "jupyter"))
    monkeypatch.setenv("JUPYTER_PATH", str(prefix / "share" / "jupyter"))
    ended = install("--gateway-url", stock_gateway.url, "--prefix", str(prefix), "--jupyterhub")
    assert ended.returncode == 0, ended.stderr
    kept = prefix / "etc" / "jupyter" / "sharedkernel" / "shared-gpu.json"
    assert str(kept) in ended.stdout
    assert stat.S_IMODE(kept.stat().st_mode) == 0o644
    assert json.loads(kept.read_text()) == {"gateway_url": stock_gateway.url, "token_from": "JUPYTERHUB_API_TOKEN"}
    assert not (home / "config").exists()
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", stock_gateway.token)
    with Notebook(None, None) as notebook:
        assert notebook.run("print(1 + 1)").text() == "2\n"
    ended = install(
        "--gateway-url", stock_gateway.url, "--token", stock_gateway.token, "--prefix", str(prefix), "--jupyterhub"
    )
    assert ended.returncode == 0, ended.stderr
    assert stock_gateway.token not in kept.read_text()


def test_a_hub_s_token_is_for_the_gateway_that_was_configured_for_it(home: Path) -> None:
    """No other is shown it: not one that a variable names, and not one that was installed with a token."""
    hub = {"JUPYTERHUB_API_TOKEN": "hubs"}
    elsewhere = {"SHAREDKERNEL_GATEWAY_URL": "http://elsewhere"}
    with pytest.raises(ConfigError, match="sharedkernel install"):
        find_credentials("shared-gpu", hub | elsewhere)
    configured = Credentials(url="http://configured", token="")
    store_credentials(credentials_path("shared-gpu", home / "config"), configured, for_hub=True)
    assert find_credentials("shared-gpu", hub) == Credentials(url="http://configured", token="hubs")
    own = hub | {"SHAREDKERNEL_TOKEN": "own"}
    assert find_credentials("shared-gpu", own) == Credentials(url="http://configured", token="own")
    assert find_credentials("shared-gpu", own | elsewhere) == Credentials(url="http://elsewhere", token="own")
    same = {"SHAREDKERNEL_GATEWAY_URL": "http://configured/"}
    assert find_credentials("shared-gpu", hub | same) == Credentials(url="http://configured", token="hubs")
    with pytest.raises(ConfigError, match="JupyterHub's tokens are for http://configured alone"):
        find_credentials("shared-gpu", hub | elsewhere)
    with pytest.raises(ConfigError, match="JUPYTERHUB_API_TOKEN is not set"):
        find_credentials("shared-gpu", {})
    store_credentials(credentials_path("shared-gpu"), Credentials(url="http://kept", token="kept"))
    assert find_credentials("shared-gpu", hub) == Credentials(url="http://kept", token="kept")


@pytest.mark.heavy
def test_an_unreachable_gateway_is_a_warning(home: Path) -> None:
    """The laptop may be on the train."""
    url = f"http://127.0.0.1:{free_port()}"
    ended = install("--gateway-url", url, "--token", "a-token")
    assert ended.returncode == 0
    assert ended.stderr.startswith(f"sharedkernel: warning: no gateway answers at {url}")
    assert ended.stderr.endswith("It was installed all the same; the token was not checked.\n")
    assert (home / "data/kernels/shared-gpu/kernel.json").exists()
    assert install("--gateway-url", url, "--token", "a-token").returncode == 0
    # What may work is not replaced by what may not.
    ended = install("--gateway-url", url, "--token", "another")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"sharedkernel: nothing was installed: no gateway answers at {url}")
    assert f"keeps for {url} stays; remove that file if" in ended.stderr
    assert find_credentials("shared-gpu", {}).token == "a-token"


def test_a_token_that_the_gateway_does_not_know_is_refused(home: Path, stock_gateway: GatewayProcess) -> None:
    """Nothing is installed that could not work."""
    ended = install("--gateway-url", stock_gateway.url, "--token", "mistyped")
    assert ended.returncode == 1
    assert "does not accept this token" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (home / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--token", "t"], "which gateway?"),
        (["--gateway-url", "http://127.0.0.1:1"], "which token?"),
        (
            ["--gateway-url", "http://h", "--prefix", "/nowhere", "--jupyterhub"],
            "Jupyter does not look in /nowhere/etc",
        ),
        (["--gateway-url", "gpu.example.org", "--token", "t"], "is not a gateway's address"),
        (["--gateway-url", "http://h/?token=x", "--token", "t"], "holds more than a gateway's address"),
        (["--gateway-url", "http://127.0.0.1:1", "--token", "two words"], "the token is empty or holds"),
        (["--gateway-url", "http://h", "--token", "t", "--user", "--sys-prefix"], "exclude each other"),
        (["--gateway-url", "http://h", "--token", "t", "--name", "../x"], "cannot be a kernel's name"),
        (["--gatewayurl", "http://h"], "--gatewayurl"),
    ],
)
def test_wrong_use_is_one_sentence(home: Path, arguments: list[str], sentence: str) -> None:
    """On standard error, with exit code 2, and nothing is written."""
    ended = run_here("install", *arguments)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not list(home.iterdir())


def test_a_place_that_cannot_be_written_is_one_sentence(home: Path) -> None:
    """Without a traceback."""
    (home / "file").touch()
    ended = install("--gateway-url", f"http://127.0.0.1:{free_port()}", "--token", "t", "--prefix", str(home / "file"))
    assert ended.returncode == 1
    assert ended.stderr.startswith("sharedkernel: cannot write")
    assert ended.stderr.count("\n") == 1


def test_the_environment_goes_before_what_is_kept(home: Path) -> None:
    """Value by value; what is kept but broken is said, with the file's name and what to do."""
    path = credentials_path("shared-gpu")
    store_credentials(path, Credentials(url="http://kept", token="kept"))
    variables = {"SHAREDKERNEL_TOKEN": "fresh"}
    assert find_credentials("shared-gpu", variables) == Credentials(url="http://kept", token="fresh")
    store_credentials(credentials_path("shared-gpu"), Credentials(url="http://kept", token="again"))
    assert find_credentials("shared-gpu", {}).token == "again"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"shared-gpu\.json cannot be read .* run `sharedkernel install"):
        find_credentials("shared-gpu", {})


def test_addresses_and_tokens_are_tidied() -> None:
    """As they come from a mail: with a slash, with a line's end."""
    assert check_url(" https://gpu.example.org/hub/ ") == "https://gpu.example.org/hub"
    assert check_token("abc\n") == "abc"
    assert "secret" not in repr(Credentials(url="http://h", token="secret"))
