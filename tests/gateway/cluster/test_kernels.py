"""The roles of a gateway in a cluster: neither needs Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.client import PATIENCE
from tests.gateway.cluster.conftest import SECRET


@pytest.mark.parametrize("role", ["host", "front"])
def test_no_gateway_imports_ray(tmp_path: Path, role: str) -> None:
    """Though it could: none depends on a cluster that ends, or has to have it installed."""
    ray, key = tmp_path / "ray", tmp_path / "key"
    ray.mkdir()
    (ray / "__init__.py").touch()
    key.touch(mode=0o600)
    key.write_text(SECRET)
    options = ["--runtime-dir", str(tmp_path / "run"), "--cluster-key", str(key), "--host-name", "h1"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sharedkernel", "gateway", "--check-config", *options]
        + ["--front"] * (role == "front"),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "sharedkernel.gateway.cluster.front" in imported
    assert not {name for name in imported if name.partition(".")[0] == "ray"}
