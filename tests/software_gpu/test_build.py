"""Building and running, without the software GPU itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_what_a_command_leaves_is_ended_and_reported(tmp_path: Path) -> None:
    """A process that outlives the command by long is a failure; the directory goes in any case."""
    code = """if True:
        import sys
        from pathlib import Path
        from tests.software_gpu import run
        from tests.software_gpu.build import Environment
        run._GRACE = 0.3
        with run.private_directory() as directory:
            python = run.prepare(directory, Environment("0", (), Path(sys.argv[1])), {})
            print(directory)
            print(run.run(sys.argv[2:], directory, python), flush=True)
        print(directory.exists())
    """

    def outcome(*command: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path), *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        directory, result, exists = done.stdout.splitlines()
        assert directory.startswith("/dev/shm/software-gpu-")
        assert exists == "False"
        return [result]

    assert outcome("python", "-c", "raise SystemExit(3)") == ["(3, [])"]
    [left] = outcome("sh", "-c", "setsid sleep 60 > /dev/null & exit 0")
    assert left.startswith("(0, ['Process ")
    assert "sleep 60" in left
