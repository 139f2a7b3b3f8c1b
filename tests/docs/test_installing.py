"""Whatever tells people to install this package says so in the one form of `sharedkernel/distribution.py`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from sharedkernel.distribution import DISTRIBUTION, pip_install

ROOT = Path(__file__).parents[2]
#: what people read, and what tools install by
TEXTS = [
    *(path for path in sorted(ROOT.glob("*.md")) if path.name != "CHANGELOG.md"),
    *(ROOT / name for name in ("Makefile", "pyproject.toml", ".ci/run", "labextension/install.json")),
    *chain.from_iterable(
        (
            path
            for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in {".md", ".py", ".ipynb", ".txt", ".service"}
        )
        for folder in ("benchmarks", "binder", "docs", "examples", "packaging", "sharedkernel")
    ),
]
#: `pip install` with options, then the first thing that it installs, in quotation marks or not; developers' own
#: installations to be edited are of a checkout always
_INSTALL = re.compile(r"\bpip install (?!.*--editable)(?:-+[\w-]+ )*('[^'\n]*'|\"[^\"\n]*\"|[^\s`]+)")
#: the name that is a stranger's on the package index, as a requirement
_OLD_NAME = re.compile(r"(?<![\w./-])sharedkernel(?:\[|\s*[=~<>]=)|\bpip install (?:[\w-]+ )*['\"]?sharedkernel\b")


def lines() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each line."""
    for path in TEXTS:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_nothing_installs_a_strangers_package() -> None:
    """Neither as a command nor as a requirement."""
    assert [found for found in lines() if _OLD_NAME.search(found[1])] == []


def test_each_text_installs_this_package_in_the_same_way() -> None:
    """With extras that there are."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    seen, wrong = 0, []
    for place, line in lines():
        for target in _INSTALL.findall(line):
            if not re.match(rf"['\"]?(\.|{DISTRIBUTION})(\[|['\"]?$)", target):
                continue  # another package
            seen += 1
            extras = re.findall(r"[\w-]+", target.partition("[")[2])
            if f"pip install {target}" != pip_install(*extras) or not set(extras) <= set(known):
                wrong.append((place, line))
    assert wrong == [], f"each is to be as {pip_install('lab')}"
    assert seen > 10
