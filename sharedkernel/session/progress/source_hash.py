"""The hash of a cell's source: of what it does, not of how it is written.

Runs of the same source take about as long as each other, so the executor learns from them. Comments, spaces and line
breaks make no difference; any other name or number does.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable

#: bytes of a hash: enough that no two sources of anybody's are ever the same by chance
_HASH_BYTES = 16


def source_hash(tree: ast.AST) -> str:
    """Return the hash of *tree*, in hexadecimal digits."""
    text = ast.dump(tree, annotate_fields=False)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_HASH_BYTES).hexdigest()


class SourceReader(ast.NodeTransformer):
    """Reads the source of each cell, and changes nothing; the first of IPython's `ast_transformers`.

    Parameters
    ----------
    on_source
        Called with the hash of each cell's source, before it runs.
    """

    def __init__(self, on_source: Callable[[str], None]) -> None:
        self._on_source = on_source

    def visit(self, node: ast.AST) -> ast.AST:
        """Read *node*, a whole cell."""
        self._on_source(source_hash(node))
        return node
