"""What the warm parent must not have done before it forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sharedkernel.executor.warm_parent import why_unfit


def test_everything_sessions_share_is_imported_without_a_device() -> None:
    """Neither torch nor what is imported beside it initialises CUDA."""
    code = """if True:
        from sharedkernel.executor import warm_parent
        warm_parent.preload()
        import torch
        assert not torch.cuda.is_initialized()
        print(warm_parent.why_unfit())
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


def test_an_initialised_driver_is_noticed_by_what_it_opens(tmp_path: Path) -> None:
    """A child could not use the GPU, so that is said before there is one."""
    for number, target in enumerate(("/dev/null", "socket:[1]", "/dev/nvidiactl", "/dev/nvidia0")):
        (tmp_path / str(number)).symlink_to(target)
    assert why_unfit(tmp_path) is None
    (tmp_path / "9").symlink_to("/dev/nvidia-uvm")
    assert "does not survive a fork" in (why_unfit(tmp_path) or "")
