"""A second Python environment, made in a moment: it has what the tests' own has, and one module more."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

#: only there, says where it is
MARKER = "second_environment"


def make_environment(directory: Path, *, bare: bool = False) -> Path:
    """Make an environment in *directory* and return its interpreter; a *bare* one has nothing installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    python = directory / "bin" / "python"
    if not bare:
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())
        (packages / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        (packages / f"{MARKER}.py").write_text("where = __file__\n")
    return python
