"""Ends what runs in the directories named on standard input, once whoever names them has ended, however it did.

A test process that is killed, as xdist does to its workers on Ctrl-C, ends no warm parents: each has 300 MB.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

import psutil


def main() -> None:
    """Wait for the end of standard input."""
    for directory in sys.stdin.read().split():
        if os.path.isdir(directory):
            _end_processes(directory)
            shutil.rmtree(directory, ignore_errors=True)


def _end_processes(directory: str) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and words[0].startswith("sharedkernel: "):  # a session's title
                words = [file.path for file in process.open_files()]
            if any(word.startswith(f"{directory}/") for word in words):
                process.kill()


if __name__ == "__main__":
    main()
