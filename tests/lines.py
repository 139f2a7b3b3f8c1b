"""Lines of code without blanks, comments and docstrings: ``python tests/lines.py`` counts those of the checkout."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

#: lines from which on a module is listed
LONG = 440

_NO_CODE = frozenset({
    tokenize.COMMENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.INDENT, tokenize.NEWLINE, tokenize.NL,
})  # fmt: skip
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def count_code(source: str) -> int:
    """Return how many lines of a module's *source* have code on them."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            found.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    lines = source.splitlines()
    return sum(bool(lines[number - 1].strip()) for number in found)


def main() -> None:
    """Print the figures of both folders, and the long modules."""
    root = Path(__file__).parents[1]
    long = []
    for folder in ("sharedkernel", "tests"):
        sources = {path: path.read_text() for path in sorted((root / folder).rglob("*.py"))}
        print(f"{folder}: {sum(map(count_code, sources.values())):,} lines of code in {len(sources)} modules")  # noqa: T201
        sizes = {path.relative_to(root): len(source.splitlines()) for path, source in sources.items()}
        long += [f"{path} ({size})" for path, size in sizes.items() if size > LONG]
    print(f"modules of more than {LONG} lines with everything: {', '.join(long) or 'none'}")  # noqa: T201


if __name__ == "__main__":
    main()
