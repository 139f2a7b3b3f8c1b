"""The wheels for a GPU machine without network: all that the project asks for, and no more."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.gpu.offline.pins import PYTHON, UNUSED, normal, pins, required, there, version

ROOT = Path(__file__).parents[2]
MACHINE = {"python_version": PYTHON, "python_full_version": f"{PYTHON}.3", "extra": ""}


def test_the_wheels_are_what_the_extras_ask_for() -> None:
    """Each requirement is met by a pinned version, or by what comes with torch."""
    pinned = pins()
    for each in required():
        name = normal(each.name)
        assert name in pinned, f"{each} is missing: run `python benchmarks/gpu/offline/pins.py renew`"
        assert each.specifier.contains(version(pinned[name])), f"{each}: wheels.txt has {pinned[name]}"
    assert all(re.fullmatch(r"[a-z0-9-]+==[^ ]+ --hash=sha256:[0-9a-f]{64}", line) for line in pinned.values())


def test_what_wheels_need_is_there_and_nothing_else() -> None:
    """As far as the packages are installed here: another version of one may need something else."""
    queue = [(normal(each.name), extra) for each in required() for extra in ("", *each.extras)]
    needed, is_complete = set(queue), True
    while queue:
        name, extra = queue.pop()
        try:
            found = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:
            is_complete = is_complete and name in there()
            continue
        for each in found:
            if each.marker is None or each.marker.evaluate({**MACHINE, "extra": extra}):
                more = {(normal(each.name), one) for one in ("", *each.extras)} - needed
                needed |= more
                queue += more
    names = {name for name, _ in needed}
    assert names <= pins().keys() | there() | UNUSED
    assert not is_complete or pins().keys() <= names


def test_the_commands_line_is_one_of_the_kits() -> None:
    """What it names exists, and its options are those of the kit."""
    (line,) = (ROOT / "benchmarks/gpu/offline/command.txt").read_text().splitlines()
    script = next(word for word in line.split() if word.endswith("run.sh"))
    assert (ROOT / script).is_file()
    options = re.findall(r"--[a-z-]+", line)
    kit = (ROOT / "benchmarks/gpu/first.py").read_text()
    assert options
    assert all(f'"{option}"' in kit for option in options)
    assert "/.whl/" in (ROOT / ".gitignore").read_text().splitlines()
