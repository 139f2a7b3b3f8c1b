"""A policy is one module: its name and its sentence reach options, configurations and documents from there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sharedkernel
from sharedkernel.scheduling.model.config import DEFAULT_POLICY, POLICY_NAMES
from sharedkernel.scheduling.policies.registry import POLICIES

PACKAGE = Path(sharedkernel.__file__).parent
GUIDE = PACKAGE.parent / "docs" / "admin-guide.md"

SHORTEST_NAME = '''
"""The shortest name first."""

from sharedkernel.scheduling.model.session import Session
from sharedkernel.scheduling.policies.base import Policy, Rank


class ShortestName(Policy):
    name = "shortest-name"
    summary = "Sessions with short names go first."
    is_preemptive = False

    def session_rank(self, session: Session) -> Rank:
        return (len(session.id), session.cell.number)

    def memory_rank(self, session: Session) -> Rank:
        return self.rank(session)
'''


def test_every_policy_has_a_name_and_a_sentence() -> None:
    """The default one is the first of those that people choose from; no published name goes."""
    assert list(POLICIES) == POLICY_NAMES
    assert next(iter(POLICIES)) == DEFAULT_POLICY
    assert POLICIES.keys() >= {"fair", "fifo", "srtf", "pack", "priority", "las", "gittins"}
    for policy in POLICIES.values():
        assert re.fullmatch(r"[A-Z][^.]*\.", policy.summary), policy


@pytest.mark.parametrize("name", POLICIES)
def test_the_guide_has_a_row_for_each(name: str) -> None:
    """It begins with the policy's own sentence; what may follow are details, and when to choose it."""
    section = GUIDE.read_text().partition("## Policies and which to choose")[2]
    (row,) = re.findall(rf"^\| `{name}`.*", section, re.MULTILINE)
    assert POLICIES[name].summary.rstrip(".") in row.split("|")[2]


@pytest.mark.heavy
def test_a_module_is_all_that_a_new_policy_takes(tmp_path: Path) -> None:
    """The help of commands, the configuration and the simulator know it."""
    package = tmp_path / "sharedkernel"
    package.mkdir()
    for path in PACKAGE.iterdir():
        if path.name != "scheduling":
            (package / path.name).symlink_to(path)
    shutil.copytree(PACKAGE / "scheduling", package / "scheduling")
    (package / "scheduling" / "policies" / "shortest_name.py").write_text(SHORTEST_NAME)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "sharedkernel", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    assert "`shortest-name`: Sessions with short names go first." in run("executor", "--help-all")
    config = tmp_path / "config.py"
    config.write_text("c.SharedKernelGateway.policy = 'shortest-name'\n")
    run("gateway", "--check-config", "--config", str(config), "--runtime-dir", str(tmp_path / "run"))
    scenario = ("simulate", "device", "--workload", "inference-42", "--capacity", "14GB")
    assert '"policy": "shortest-name"' in run(*scenario, "--compare", "fair,shortest-name", "--json")
