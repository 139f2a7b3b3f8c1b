"""Make the loops at the top level of a cell report each pass, for code that passes no other boundary.

An `ast` transformer puts ``if <hook>: <hook>(n)`` first in the body of each `for` and `while` loop that calls
anything or multiplies matrices, where it also sees a pass that the last one's `continue` cut short. The hook is a
builtin that is None unless :func:`watch` was given a function, so an unwatched loop pays for one lookup (about 10 ns).

Functions, classes and lambdas are left as they were written: their code may go where there is no such builtin (another
process, a compiler), and may be looked at by others. The code of a cell's top level runs here, once, and is gone.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Callable
from typing import cast

_HOOK = "__sharedkernel_loop__"
_numbers = itertools.count(1)


def watch(hook: Callable[[int], None] | None) -> None:
    """Call *hook* with the loop's number at each pass of a transformed loop; None ends that."""
    setattr(builtins, _HOOK, hook)


def watched() -> Callable[[int], None] | None:
    """Return the function that :func:`watch` was given."""
    return cast("Callable[[int], None] | None", getattr(builtins, _HOOK, None))


class LoopReporter(ast.NodeTransformer):
    """The transformer; one of IPython's `ast_transformers`."""

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave

    def _report(self, node: ast.For | ast.While) -> ast.AST:
        worth_it = any(_may_be_device_work(part) for statement in node.body for part in ast.walk(statement))
        self.generic_visit(node)
        if not worth_it:
            return node
        name = ast.Name(id=_HOOK, ctx=ast.Load())
        call = ast.Expr(ast.Call(func=name, args=[ast.Constant(next(_numbers))], keywords=[]))
        report = ast.If(test=name, body=[call], orelse=[])
        for part in ast.walk(report):
            ast.copy_location(part, node.body[0])
        node.body.insert(0, report)
        return node

    visit_For = visit_While = _report


def _may_be_device_work(node: ast.AST) -> bool:
    return isinstance(node, ast.Call | ast.Await) or (
        isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult | ast.Mult)
    )
