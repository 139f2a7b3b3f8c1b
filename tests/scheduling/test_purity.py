"""The core decides and does nothing else: it imports nothing that could act."""

from __future__ import annotations

import ast
from pathlib import Path

import sharedkernel.scheduling

ALLOWED = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "heapq",
    "itertools",
    "math",
    "random",
    "typing",
}
CORE = Path(sharedkernel.scheduling.__file__).parent
#: what placement needs to match jobs to devices, and the registry to find policies; nobody else here
ALLOWED_IN = {"matching.py": {"numpy", "scipy"}, "policies/registry.py": {"importlib", "pkgutil"}}
#: pure helpers of the package itself
ALLOWED_OWN = ("sharedkernel.scheduling", "sharedkernel.errors", "sharedkernel.quota_check")


def imports_of(path: Path) -> set[str]:
    """Return the modules that a source file names in imports, wherever they stand."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.relative_to(CORE)} imports relatively"
            names.add(node.module or "")
    return names


def test_core_imports_only_what_is_pure() -> None:
    """No clock, no network, no environment: nothing but data structures, mathematics and the package's errors."""
    modules = list(CORE.rglob("*.py"))
    assert {path.parent.name for path in modules} >= {"scheduling", "model", "steps", "memory", "policies"}
    for path in modules:
        for name in imports_of(path):
            is_own = name.startswith(ALLOWED_OWN)
            allowed = ALLOWED | ALLOWED_IN.get(str(path.relative_to(CORE)), set())
            assert is_own or name.split(".")[0] in allowed, f"{path.relative_to(CORE)} imports {name}"


def test_core_never_prints_or_opens_files() -> None:
    """What needs no import to act is not called either."""
    forbidden = {"print", "open", "input", "eval", "exec", "__import__"}
    for path in CORE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in forbidden, f"{path.relative_to(CORE)} calls {node.func.id}"
