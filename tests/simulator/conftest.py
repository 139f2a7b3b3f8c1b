from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def traces() -> Path:
    """Return the folder of published traces, where there is one."""
    folder = os.environ.get("SHAREDKERNEL_TRACES")
    if not folder:
        pytest.skip("SHAREDKERNEL_TRACES names no folder of published traces")
    return Path(folder)
