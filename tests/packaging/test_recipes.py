"""The example for Zero to JupyterHub, and the conda recipe: they agree with the guide and with pyproject.toml."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from sharedkernel._version import __version__
from sharedkernel.cli.main import COMMANDS, SharedKernelApp
from sharedkernel.client.gateway.credentials import CA_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path: str) -> dict[str, Any]:
    """Return a YAML file of `packaging/`."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "packaging" / path).read_text())
    return document


def test_the_hubs_values_are_those_of_the_guide() -> None:
    """The same service, and the same scopes of users and their servers."""
    values = read("z2jh/values.yaml")
    guide = (ROOT / "docs" / "admin-guide.md").read_text()
    [roles] = re.findall(r"^c\.JupyterHub\.load_roles = (\[.*?^\])", guide, re.MULTILINE | re.DOTALL)
    wanted = {role["name"]: role["scopes"] for role in ast.literal_eval(roles)}
    assert {name: role["scopes"] for name, role in values["hub"]["loadRoles"].items()} == wanted
    [service] = values["hub"]["services"]
    assert f'"name": "{service}"' in guide


def test_users_servers_are_told_of_the_gateway_and_may_reach_it() -> None:
    """By a variable that there is, at the port that the rule of the network lets through."""
    values = read("z2jh/values.yaml")["singleuser"]
    assert set(values["extraEnv"]) <= {URL_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE}
    [rule] = values["networkPolicy"]["egress"]
    assert values["extraEnv"][URL_VARIABLE].endswith(f":{rule['ports'][0]['port']}")


def test_the_conda_recipe_requires_what_the_package_does() -> None:
    """The same versions of the same packages, of Python too, and the same command."""
    recipe = read("conda/recipe.yaml")
    context = recipe["context"]
    assert recipe["package"] == {"name": PROJECT["name"], "version": "${{ version }}"}
    assert (context["version"], f">={context['python_min']}") == (__version__, PROJECT["requires-python"])
    required = {requirement.replace(" ", "") for requirement in recipe["requirements"]["run"]}
    assert required == {*PROJECT["dependencies"], "python>=${{python_min}}"}
    built_with = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    host = {requirement.replace(" ", "") for requirement in recipe["requirements"]["host"]}
    assert {*built_with} <= host
    builder = (ROOT / "labextension" / "build_backend.py").read_text()
    assert all(f'"{name}' in builder for name in host if name.startswith("jupyter-builder"))
    scripts = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert (ROOT / recipe["about"]["license_file"]).exists()
    assert (ROOT / "packaging/conda" / recipe["source"]["path"] / "pyproject.toml").exists()


def test_what_the_conda_recipe_tries_can_be_run() -> None:
    """Commands that there are, which work without the host's packages."""
    [_, tried] = read("conda/recipe.yaml")["tests"]
    commands = [line.split() for line in tried["script"]]
    assert [words[0] for words in commands] == ["sharedkernel"] * len(commands)
    assert [words[1] for words in commands if words[1] in COMMANDS and COMMANDS[words[1]].extra is None] == ["top"]
    assert ["sharedkernel", "--version"] in commands
    assert SharedKernelApp.name == "sharedkernel"
