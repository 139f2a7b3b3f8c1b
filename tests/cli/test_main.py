"""The command line itself: what it refuses, and how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharedkernel._version import __version__
from sharedkernel.cli.main import COMMANDS
from sharedkernel.distribution import install_hint
from tests.cli.support import COMMAND
from tests.command import run_apart, run_here


def test_the_version_is_the_packages() -> None:
    """``--version`` prints it and succeeds."""
    done = run_apart("--version")
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


def test_a_reader_who_goes_away_is_told_nothing(tmp_path: Path) -> None:
    """As with ``sharedkernel simulate … | head``; what is printed waits in a buffer until the end."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        command = [*COMMAND, "simulate", "class", "--students", "2", "--device", "24GiB"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["lab", "--help"], ["status", "--help"], ["top", "-h"], ["install", "--help"]],
)
def test_help_shows_an_example(arguments: list[str]) -> None:
    """Every command explains itself with an example."""
    done = run_here(*arguments)
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert "    sharedkernel " in done.stdout
    if arguments == ["--help"]:
        assert all(f"\n{name}\n" in done.stdout for name in COMMANDS)


def test_no_command_shows_the_help() -> None:
    """The bare command is wrong use, answered with the help."""
    done = run_here()
    assert (done.returncode, "demo" in done.stdout) == (2, True)


@pytest.mark.parametrize("command", ["gateway", "executor"])
def test_help_says_a_default_once_and_as_it_is(command: str) -> None:
    """Not that of the class that an option came from, nor that there is none.

    And without a grammar that nobody needs: it takes two seconds to import, and would be most of a gateway's start.
    """
    done = run_apart(command, "--help", PYTHONPROFILEIMPORTTIME="1")
    text = done.stdout
    assert not any(f"Default: {nothing}" in text for nothing in ("''", "0\n", "<", "{}"))
    options = text.split("\n--")[1:]
    assert all(option.count("Default: ") <= 1 for option in options)
    if command == "gateway":
        assert "jsonschema" in done.stderr
        assert "rfc3987_syntax.syntax_helpers" not in done.stderr
        assert any(option.startswith("port") and "Default: 8585" in option for option in options)
        assert any(option.startswith("runtime-dir") and "$XDG_RUNTIME_DIR" in option for option in options)


def test_a_directory_that_is_not_to_be_had_is_one_sentence_and_1() -> None:
    """Jupyter makes it while it still reads the line, and its error is none of ours."""
    done = run_apart("gateway", "--runtime-dir", "/dev/null/run", "--check-config")
    sentence = "/dev/null/run cannot be used (Not a directory); name another, or have its owner make it."
    assert (done.returncode, done.stderr) == (1, f"sharedkernel: {sentence}\n")


@pytest.mark.parametrize(
    ("arguments", "place", "sentence"),
    [
        (["gateway", "--port", "0", "--runtime-dir", "{}"], "file", "'{}' exists but is not a directory; name another"),
        (["gateway", "--port", "0"], "sharedkernel", "{} is not a directory; remove it or name another"),
        (["executor", "--runtime-dir", "{}"], "link", "{} is not a directory; remove it or name another"),
        (["executor", "--runtime-dir", "{}"], "file/below", "{} cannot be made (Not a directory); name another"),
    ],
)
def test_what_is_no_directory_is_one_sentence_and_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], place: str, sentence: str
) -> None:
    """A file, a link to nowhere, or one of them on the way, named or in the usual place; it stays as it is."""
    for name in ("file", "sharedkernel"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = run_apart(*(argument.format(tmp_path / place) for argument in arguments))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"sharedkernel: {sentence.format(tmp_path / place)}")
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "sharedkernel"]


def test_the_users_side_needs_no_torch() -> None:
    """``sharedkernel status`` loads neither torch nor Jupyter's server, nor what asks Linux for something."""
    script = (
        "import sys\n"
        "import sharedkernel.cli.main\n"
        "from sharedkernel.cli import sessions, top\n"
        "from sharedkernel.cli.trace import app\n"
        "unwanted = ('torch', 'jupyter_server', 'numpy', 'IPython', 'sharedkernel.system.processes')\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def run_where(tmp_path: Path, customization: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a Python that *customization* made different."""
    (tmp_path / "usercustomize.py").write_text("")
    (tmp_path / "sitecustomize.py").write_text(customization)
    return run_apart(*arguments, PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}")


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    """Without the packages of its extra a command says which are missing and what to install."""
    hide = (
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name in ('torch', 'psutil') else find(name, package)\n"
    )
    done = run_where(tmp_path, hide, "executor")
    assert done.returncode == 1
    assert done.stderr == (
        "sharedkernel: `sharedkernel executor` needs psutil, torch; "
        f"install the packages with {install_hint('host')}.\n"
    )


def test_another_system_is_told_where_to_go(tmp_path: Path) -> None:
    """The host's commands say that they are for Linux, and what to do elsewhere."""
    done = run_where(tmp_path, "import sys; sys.platform = 'plan9'\n", "gateway")
    assert done.returncode == 1
    assert "runs on Linux only and this is plan9" in done.stderr
    assert "sharedkernel install" in done.stderr
