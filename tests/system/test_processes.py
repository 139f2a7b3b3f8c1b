"""What a process shows of itself to everybody on the machine."""

from __future__ import annotations

import subprocess
import sys

from sharedkernel.system.processes import session_title

_SHOW = """if True:
    import os, sys
    from pathlib import Path
    from sharedkernel.system import processes
    processes.prepare_titles()
    os.environ["MARK"] = "changed"
    processes.show_title(sys.argv[1], "sk ada")
    own = Path("/proc/self")
    print((own / "cmdline").read_bytes().rstrip(b"\\0").decode(), end="|")
    print((own / "comm").read_text().strip(), end="|")
    print(b"MARK=kept" in (own / "environ").read_bytes().split(b"\\0"), "SPT_NOENV" in os.environ, end="")
"""


def test_a_process_shows_a_title_and_keeps_its_environment() -> None:
    """Both names change; what the system shows of the environment and what programs inherit do not."""
    command = [sys.executable, "-c", _SHOW, "sharedkernel: ada · train.ipynb"]
    shown = subprocess.run(command, env={"MARK": "kept"}, capture_output=True, text=True, check=True)
    assert shown.stdout == "sharedkernel: ada · train.ipynb|sk ada|True False"


def test_a_title_is_bounded_and_on_one_line() -> None:
    """Whatever a client calls its notebook: no folders, no characters that a terminal would act on."""
    assert session_title("ada", "lessons/one/train.ipynb") == "sharedkernel: ada · train.ipynb"
    assert session_title("ada", None) == session_title("ada", "folder/") == "sharedkernel: ada"
    assert session_title("ada\n", "a\x1b[2J\tb\u202e.ipynb") == "sharedkernel: ada? · a?[2J?b?.ipynb"
    assert len(session_title("u" * 1000, "n" * 1000)) < 130
