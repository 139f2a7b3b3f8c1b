"""README and docs: they build without a warning, and what they show works as it stands there.

Python runs in a real session, one per document, in order; configuration is read as the gateway reads it; commands are
parsed by the commands themselves, since starting services from a page would prove little more than their own tests do.
"""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from benchmarks.stack.client import open_notebook
from benchmarks.stack.servers import gateway_route
from sharedkernel.cli.main import COMMANDS
from sharedkernel.gateway.app import SharedKernelGateway
from sharedkernel.gateway.config.quotas import Quotas
from sharedkernel.local_stack import LocalStack
from tests.warm_stack import WarmStack

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("20*.md"))
_STATUS = re.compile(r"# .+\n\nStatus: (holds|holds in part; see \[.+\]\(.+\)|superseded by \[.+\]\(.+\))\.\n\n")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the executor runs on Linux only")


def blocks(document: Path, language: str) -> list[str]:
    """Return a document's code blocks in one language."""
    return [text for found, text in _BLOCK.findall(document.read_text()) if found == language]


def is_configuration(block: str) -> bool:
    """Whether a block of Python belongs into the configuration file."""
    return block.startswith("c.")


def cells(document: Path) -> list[str]:
    """Return a document's blocks of Python for notebooks."""
    return [block for block in blocks(document, "python") if not is_configuration(block)]


def command_lines(language: str = "sh") -> Iterator[list[str]]:
    """Yield each command line of all documents, in words."""
    for document in DOCUMENTS:
        for block in blocks(document, language):
            # as a shell does
            for line in block.replace("\\\n", " ").replace("$(hostname)", "gpu-host").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield words[:-1] if words[-1] == "&" else words


@pytest.mark.timeout(300)
def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    """A broken link or a heading that is gone is a warning, and a warning is an error."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees"]
    built = subprocess.run(
        [*command, ROOT / "docs", tmp_path / "html"], capture_output=True, text=True, check=False, timeout=290
    )
    assert built.returncode == 0, built.stderr
    assert "preempt_patience" in (tmp_path / "html" / "reference" / "configuration.html").read_text()
    commands = (tmp_path / "html" / "reference" / "commands.html").read_text()
    assert "or --config)" in commands  # two hyphens that a shell understands
    assert not set(commands) & set("\u201c\u201d\u2018\u2019\u2013")


@pytest.mark.parametrize("document", [*PAGES, *DOCUMENTS], ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    """Sphinx checks the links within docs; this test also checks those of the pages beside it."""
    links = re.findall(r"\]\((?!\w+:)([^)#]+)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists() and "reference/" not in link] == []


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_says_whether_it_holds_and_is_short(decision: Path) -> None:
    """Who looks for what was tried needs to know that at a glance."""
    text = decision.read_text()
    assert _STATUS.match(text)
    assert len(text.split()) <= 400


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Start an executor and a gateway."""
    with WarmStack(users=["reader"], capacity="1GiB") as stack:
        yield stack


@pytest.mark.parametrize("document", [*filter(cells, DOCUMENTS)], ids=lambda path: path.name)
def test_the_python_in_it_runs(stack: LocalStack, document: Path) -> None:
    """As cells of one notebook, in order."""

    async def run() -> None:
        async with open_notebook(gateway_route(stack, "reader")) as notebook:
            for block in cells(document):
                await notebook.run(block)

    asyncio.run(run())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_configuration_in_it_is_accepted(document: Path) -> None:
    """Every name is known, and every quota can be used."""
    for block in filter(is_configuration, blocks(document, "python")):
        config = Config()
        exec(block, {"c": config})
        for name in config.SharedKernelGateway:
            assert SharedKernelGateway.class_traits()[name].metadata["config"], name
        Quotas(config.SharedKernelGateway.get("quotas"), config.SharedKernelGateway.get("groups"))


def sentences() -> str:
    """Return all text in the package's code, whatever is filled in left out; apart by a character none contains."""
    found: list[str] = []
    for path in (ROOT / "sharedkernel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\0".join(found)


def test_the_errors_that_are_explained_are_said() -> None:
    """Each text that the page on trouble begins with is in the code, so that whoever searches for it finds it."""
    said = sentences()
    explained = re.findall(r"^`([^`]+)`\n: ", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(explained) > 30
    unknown = [
        part
        for text in explained
        for part in map(str.strip, text.split("…"))
        if len(part) > 3 and part.strip(" ;,:") not in said
    ]
    assert unknown == ["DefaultCPUAllocator: can't allocate memory"]  # torch says this


def test_the_commands_in_them_exist(tmp_path: Path) -> None:
    """With these options and targets."""
    makefile = (ROOT / "Makefile").read_text()
    seen = set()
    for program, *arguments in command_lines():
        seen.add(program)
        match program:
            case "sharedkernel":
                application = import_item(COMMANDS[arguments[0]].application)()
                application.parse_command_line(arguments[1:])
                if application.subapp is not None:
                    application.subapp.clear_instance()  # the next command is of a process of its own
            case "make":
                assert f"\n{arguments[0]}:" in makefile, arguments
            case "pip":
                assert arguments[0] == "install"  # `test_installing.py` looks at what
            case "openssl" if shutil.which(program):
                subprocess.run([program, *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=60)
                ssl.create_default_context(cafile=tmp_path / "gpu.crt").load_cert_chain(
                    tmp_path / "gpu.crt", tmp_path / "gpu.key"
                )
            case "openssl":
                pass
            case _:
                raise AssertionError(f"nothing checks {program}")
    assert seen >= {"sharedkernel", "make", "pip"}
