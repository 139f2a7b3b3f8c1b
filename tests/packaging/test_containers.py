"""The image and the compose file: what can be tested without a registry of images.

Neither was built or started by these tests. They check the files against the compose specification, our own command
lines and options, and each other.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from traitlets.utils.importstring import import_item

from sharedkernel.cli.main import COMMANDS
from tests.command import run_apart

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "packaging/container/Containerfile"
COMPOSE = ROOT / "packaging/compose"
#: what the administrator puts there, as the comment at the top of compose.yaml says
MADE = {"./config", "./secrets/prometheus-token", "./secrets/grafana-password"}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the services run on Linux only")


def parse(words: list[str]) -> Any:
    """Return the application that a command line of ours starts, once it has accepted the line."""
    application = import_item(COMMANDS[words[0]].application)()
    if words[0] == "host" and "--" in words:
        parse(["gateway", *words[words.index("--") + 1 :]])
        words = words[: words.index("--")]
    application.parse_command_line(words[1:])
    return application


def instructions() -> list[tuple[str, str]]:
    """Return the Containerfile's instructions and what follows each."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line]


def of(name: str) -> list[str]:
    """Return what follows each instruction of a name."""
    return [rest for instruction, rest in instructions() if instruction == name]


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """Return a compose file."""
    document: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    return document


@pytest.mark.heavy
def test_compose_files_are_valid() -> None:
    """By the compose specification's schema."""
    files = [str(COMPOSE / name) for name in ("compose.yaml", "compose.gpu.yaml")]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_commands_in_them_are_ours() -> None:
    """Each service's, and the image's own, with options that there are."""
    [entrypoint] = of("ENTRYPOINT")
    assert yaml.safe_load(entrypoint) == ["sharedkernel"]
    [default] = of("CMD")
    lines = [yaml.safe_load(default)]
    for name in ("compose.yaml", "compose.gpu.yaml"):
        lines += [service["command"] for service in compose(name)["services"].values() if "command" in service]
    assert [line[0] for line in lines] == ["host", "executor", "gateway", "executor"]
    for line in lines:
        parse(line)
    [installed] = [run for run in of("RUN") if "sharedkernel install" in run]
    parse(shlex.split(installed.partition("&& sharedkernel ")[2]))


def test_the_image_installs_extras_that_there_are() -> None:
    """Those of the image, and those that the compose files ask for."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [rest.partition("=")[2] for rest in of("ARG") if rest.startswith("EXTRAS")]
    for name in ("compose.yaml", "compose.gpu.yaml"):
        asked.append(re.findall(r":-([\w,]+)}", compose(name)["services"]["executor"]["build"]["args"]["EXTRAS"])[0])
    assert len(asked) == 3
    assert {extra for extras in asked for extra in extras.split(",")} <= set(known)


def test_paths_exist_here_and_in_the_image() -> None:
    """What is mounted is in the checkout, or to be made by the administrator; where it goes, the image has a place."""
    document = compose()
    build = document["services"]["executor"]["build"]
    assert (COMPOSE / build["context"] / build["dockerfile"]).resolve() == CONTAINERFILE
    assert any(stage.endswith(f" AS {build['target']}") for stage in of("FROM"))
    [made] = [run for run in of("RUN") if "install -d" in run]
    for name, service in document["services"].items():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            if not source.startswith("."):
                assert source in document["volumes"], source
            elif source not in MADE:
                assert (COMPOSE / source).exists(), source
            assert name not in ("executor", "gateway") or target in made.split(), target
        assert set(service.get("secrets", ())) <= document["secrets"].keys()
    assert {secret["file"] for secret in document["secrets"].values()} <= MADE


def test_services_reach_each_other() -> None:
    """Executor and gateway share their runtime directory, processes and account; the port is the configured one."""
    services = compose()["services"]
    executor, gateway = services["executor"], services["gateway"]
    runtime = executor["command"][executor["command"].index("--runtime-dir") + 1]
    assert f"runtime:{runtime}" in executor["volumes"]
    assert f"runtime:{runtime}" in gateway["volumes"]
    assert gateway["command"][gateway["command"].index("--runtime-dir") + 1] == runtime
    assert gateway["pid"] == "service:executor"
    [account] = [run for run in of("RUN") if "useradd" in run]
    uid = re.findall(r"--uid (\d+)", account)[0]
    assert f"uid={uid}," in compose()["volumes"]["runtime"]["driver_opts"]["o"]
    assert gateway["ports"] == [f"{of('EXPOSE')[0]}:8585"]


def test_the_configuration_is_in_order(tmp_path: Path) -> None:
    """With the certificate that it names beside it."""
    certificate = trustme.CA().issue_cert("gpu-host.example.org")
    (tmp_path / "gpu.crt").write_bytes(certificate.cert_chain_pems[0].bytes())
    (tmp_path / "gpu.key").write_bytes(certificate.private_key_pem.bytes())
    text = (COMPOSE / "jupyter_sharedkernel_config.py").read_text()
    assert text.count("/etc/sharedkernel/") == 2
    path = tmp_path / "jupyter_sharedkernel_config.py"
    path.write_text(text.replace("/etc/sharedkernel", str(tmp_path)))
    done = run_apart("gateway", "--check-config", "--config", str(path), "--runtime-dir", str(tmp_path / "run"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"In order: {path}.\n", "")
