"""A gateway in a cluster, as a front or as a host: it does not need Ray."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import sharedkernel.gateway.hosts
from tests.gateway.client import PATIENCE


def test_no_gateway_imports_ray(tmp_path: Path) -> None:
    """Though it could: none depends on a cluster that ends, or has to have it installed."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").touch()
    package = sharedkernel.gateway.hosts
    names = [module.name for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
    assert f"{package.__name__}.front" in names
    code = f"import sys, {', '.join(names)}; print([name for name in sys.modules if name.partition('.')[0] == 'ray'])"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(sharedkernel.__file__).parents[1]}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.strip() == "[]"
