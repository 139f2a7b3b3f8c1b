"""Make the loops of a cell's own source report each pass, for code that passes no other boundary.

An `ast` transformer puts ``if <hook>: <hook>(n)`` first in the body of each `for` and `while` loop that calls
anything or multiplies matrices, where it also sees a pass that the last one's `continue` cut short. The hook is a
builtin that is None unless :func:`watch` was given a function, so an unwatched loop pays for one lookup (about 10 ns).

The range of a loop that is written as ``for … in range(…)`` is kept, as its iterator, which knows how much is left
(:func:`keep_ranges`): once as the loop begins, and nothing per pass. Loops inside loops are left alone, as they may
begin very often, unless they train.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Callable, Iterable
from typing import Any, cast

_HOOK = "__sharedkernel_loop__"
_RANGE_HOOK = "__sharedkernel_range__"
#: methods whose call in a loop's body says that it trains
_TRAINING = frozenset({"backward", "step", "zero_grad"})
_numbers = itertools.count(1)


def watch(hook: Callable[[int], None] | None) -> None:
    """Call *hook* with the loop's number at each pass of a transformed loop; None ends that."""
    setattr(builtins, _HOOK, hook)


def watched() -> Callable[[int], None] | None:
    """Return the function that :func:`watch` was given."""
    return cast("Callable[[int], None] | None", getattr(builtins, _HOOK, None))


def keep_ranges(keep: Callable[[int, range], Iterable[int]]) -> None:
    """Have *keep*, given a loop's number and range, return what the loop shall iterate over, from now on."""

    def hook(number: int, values: Any) -> Any:
        return keep(number, values) if type(values) is range else values

    setattr(builtins, _RANGE_HOOK, hook)


class LoopReporter(ast.NodeTransformer):
    """The transformer; one of IPython's `ast_transformers`.

    Functions with decorators are left alone: compilers and registries of other libraries read their source or trace
    their bytecode, and must find what the user wrote.
    """

    def __init__(self) -> None:
        #: loops around what is visited, within its function
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Transform the loops of a plain function."""
        if node.decorator_list:
            return node
        depth, self._depth = self._depth, 0
        try:
            return self.generic_visit(node)
        finally:
            self._depth = depth

    def visit_For(self, node: ast.For) -> ast.AST:
        """Transform a `for` loop."""
        if hasattr(builtins, _RANGE_HOOK) and _is_range(node.iter) and (not self._depth or _trains(node)):
            name = ast.Name(id=_RANGE_HOOK, ctx=ast.Load())
            call = ast.Call(func=name, args=[ast.Constant(next(_numbers)), node.iter], keywords=[])
            ast.copy_location(call, node.iter)
            node.iter = ast.fix_missing_locations(call)
        return self._report(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        """Transform a `while` loop."""
        return self._report(node)

    def _report(self, loop: ast.For | ast.While) -> ast.AST:
        worth_it = any(_may_be_device_work(node) for statement in loop.body for node in ast.walk(statement))
        self._depth += 1
        self.generic_visit(loop)
        self._depth -= 1
        if not worth_it:
            return loop
        name = ast.Name(id=_HOOK, ctx=ast.Load())
        call = ast.Expr(ast.Call(func=name, args=[ast.Constant(next(_numbers))], keywords=[]))
        report = ast.If(test=name, body=[call], orelse=[])
        for node in ast.walk(report):
            ast.copy_location(node, loop.body[0])
        loop.body.insert(0, report)
        return loop


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def _trains(loop: ast.For) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TRAINING
        for statement in loop.body
        for node in ast.walk(statement)
    )


def _may_be_device_work(node: ast.AST) -> bool:
    return isinstance(node, ast.Call | ast.Await) or (
        isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult | ast.Mult)
    )
