"""Loops at a cell's top level report their passes, and behave as before otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from sharedkernel.session.progress import loops


@pytest.fixture
def passes() -> Iterator[list[int]]:
    """Watch loops; yields the numbers of the loops passed."""
    seen: list[int] = []
    loops.watch(seen.append)
    yield seen
    loops.watch(None)


def run(source: str) -> dict[str, object]:
    tree = ast.fix_missing_locations(loops.LoopReporter().visit(ast.parse(source)))
    namespace: dict[str, object] = {}
    exec(compile(tree, "<cell>", "exec"), namespace)
    return namespace


def test_each_pass_is_reported_also_when_continue_cuts_it_short(passes: list[int]) -> None:
    """A loop of four passes reports four times, whatever `continue` does."""
    namespace = run("total = 0\nfor i in range(4):\n    if abs(i) % 2: continue\n    total += i")
    assert len(passes) == 4
    assert len(set(passes)) == 1
    assert namespace["total"] == 2


def test_loops_have_numbers_of_their_own(passes: list[int]) -> None:
    """Two loops can be told apart."""
    run("for i in range(2): abs(i)\nn = 0\nwhile n < 3: n = max(n + 1, 0)")
    assert sorted(passes.count(number) for number in set(passes)) == [2, 3]


def test_an_unwatched_loop_runs_as_before() -> None:
    """Without a watcher nothing is called."""
    assert loops.watched() is None
    assert run("out = [0]\nfor i in range(3): out.append(i)")["out"] == [0, 0, 1, 2]


def test_loops_that_cannot_use_the_device_are_left_alone() -> None:
    """A loop that calls nothing and multiplies nothing gets no hook."""
    tree = ast.parse("for i in x:\n    n += 1")
    assert ast.dump(loops.LoopReporter().visit(ast.parse("for i in x:\n    n += 1"))) == ast.dump(tree)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    for i in range(3):\n        g(x)",
        "async def f(x):\n    while x:\n        await g(x)",
        "class A:\n    for i in range(3):\n        g(i)\n    def f(self):\n        for i in x: g(i)",
        "f = lambda x: [g(i) for i in x]",
    ],
)
def test_functions_and_classes_are_left_as_they_were_written(source: str) -> None:
    """Their code may go to other processes and compilers; also where it is written within a loop."""
    assert ast.dump(loops.LoopReporter().visit(ast.parse(source))) == ast.dump(ast.parse(source))
    within = "while True:\n" + "\n".join(f"    {line}" for line in source.splitlines())
    (loop,) = loops.LoopReporter().visit(ast.parse(within + "\n    g()")).body
    assert ast.dump(loop.body[1]) == ast.dump(ast.parse(source).body[0])


def test_an_error_names_the_line_that_the_user_wrote(passes: list[int]) -> None:
    """Line numbers of tracebacks do not move."""
    with pytest.raises(ZeroDivisionError) as caught:
        run("for i in range(3):\n    abs(i)\n    1 / 0")
    assert caught.traceback[-1].lineno == 2  # counted from 0
