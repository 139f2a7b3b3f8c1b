"""Run the same cells on a stock kernel and on Shared GPU, and require the same outputs."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest
from nbformat import NotebookNode

from benchmarks.notebooks.comparing import WHOLE_NOTEBOOK, Difference, differences
from benchmarks.notebooks.running import (
    OK,
    Run,
    cells_from_sources,
    run_notebook,
    shared_kernel,
    stock_kernel,
)
from sharedkernel.local_stack import LocalStack

#: seconds that all cells of a test may take on a busy machine
_LIMIT = 150.0


def needs(*modules: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test where one of *modules* is not installed, without importing any."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


class Pair:
    """Both kernels.

    Parameters
    ----------
    stack
        What is behind Shared GPU.
    files
        Folder whose contents each run finds where it runs.
    """

    def __init__(self, stack: LocalStack, files: Path) -> None:
        self._stack = stack
        self._files = files

    def check(self, *sources: str) -> str:
        """Require cells to run without an error on the stock kernel and to show the same on Shared GPU.

        Returns
        -------
        str
            What the last cell printed.
        """
        cells = cells_from_sources([dedent(source).strip() for source in sources])
        stock = self.compare(cells)
        for cell in stock.cells:
            errors = [output for output in cell.outputs if output.output_type == "error"]
            assert not errors, f"on the stock kernel:\n{cell.source}\n{errors[0].ename}: {errors[0].evalue}"
        last = stock.cells[-1].outputs
        return "".join(output.text for output in last if output.output_type == "stream" and output.name == "stdout")

    def compare(self, cells: Sequence[NotebookNode], answers: Sequence[str] = ()) -> Run:
        """Require *cells* to end alike on both kernels and to show the same, errors included.

        Parameters
        ----------
        cells
            Those with the tag ``timed`` may differ in numbers.
        answers
            Replies to `input()`, in order.

        Returns
        -------
        Run
            That on the stock kernel.
        """

        async def run() -> tuple[Run, Run]:
            kernels = stock_kernel(), shared_kernel(self._stack, "ada")
            runs = (run_notebook(cells, kernel, files=self._files, limit=_LIMIT, answers=answers) for kernel in kernels)
            stock, shared = await asyncio.gather(*runs)
            return stock, shared

        stock, shared = asyncio.run(run())
        assert stock.outcome == OK
        timed = {index for index, cell in enumerate(cells) if "timed" in cell.metadata.get("tags", ())}
        if timed:
            timed.add(WHOLE_NOTEBOOK)  # the widgets of its bars
        differing = [found for found in differences(stock, shared, numbers=True) if found.index not in timed]
        differing += [found for found in differences(stock, shared, numbers=False) if found.index in timed]
        assert not differing, "\n".join(_told(found, cells) for found in differing)
        return stock


def _told(found: Difference, cells: Sequence[NotebookNode]) -> str:
    source = cells[found.index].source if found.index >= 0 else "(the notebook as a whole)"
    sides = (("stock kernel", found.first), ("Shared GPU", found.other))
    texts = ["\n".join(f"[{kind}] {text}" for kind, text in outputs) for _, outputs in sides]
    return f"cell {found.index}: {source}\n" + "\n".join(
        f"--- {name}\n{text}" for (name, _), text in zip(sides, texts, strict=True)
    )
