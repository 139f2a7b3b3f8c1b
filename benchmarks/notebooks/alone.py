"""Each notebook by itself: twice on a stock kernel, once on Shared GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.notebooks.comparing import Difference, differences
from benchmarks.notebooks.running import Run, read_cells, run_notebook, shared_kernel, stock_kernel
from benchmarks.notebooks.watching import watched
from sharedkernel.local_stack import LocalStack

#: bytes of a device that every notebook fits on with room to spare
_CAPACITY = "8GiB"


@dataclass(frozen=True, slots=True)
class Measured:
    """A notebook, run by itself."""

    folder: Path
    #: two runs on the stock kernel; where they differ says nothing about Shared GPU
    stock: tuple[Run, Run]
    shared: Run
    #: most memory that its session had, bytes
    peak_bytes: int

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def floor(self) -> set[int]:
        """Indices of cells whose outputs differ from one stock kernel to the next."""
        return {difference.index for difference in differences(*self.stock, numbers=False)}

    @property
    def time_ratio(self) -> float:
        """Time of the cells on Shared GPU, over the mean of the stock runs."""
        return 2 * self.shared.seconds / sum(run.seconds for run in self.stock)

    def beyond_floor(self, run: Run) -> list[Difference]:
        """Return where *run*, another one of this notebook, differs from the stock kernel for a reason of its own."""
        floor = self.floor
        return [found for found in differences(self.stock[0], run, numbers=False) if found.index not in floor]


async def measure(folders: Sequence[Path], limit: float, say: Callable[[str], None]) -> list[Measured]:
    """Run the notebook in each of *folders* by itself.

    Parameters
    ----------
    folders
        Hold ``nb.ipynb`` and its files.
    limit
        Seconds that a run may take.
    say
        Is called with a line on each notebook.
    """
    found = []
    users = {folder: f"user-{number}" for number, folder in enumerate(folders)}
    with LocalStack(users=list(users.values()), capacity=_CAPACITY) as stack:
        for folder, user in users.items():
            cells = read_cells(folder)
            first = await run_notebook(cells, stock_kernel(), files=folder, limit=limit)
            second = await run_notebook(cells, stock_kernel(), files=folder, limit=limit)
            async with watched(stack) as watch:
                shared = await run_notebook(cells, shared_kernel(stack, user), files=folder, limit=limit)
            found.append(Measured(folder, (first, second), shared, watch.peaks.get(user, 0)))
            say(_line(found[-1]))
    return found


def _line(measured: Measured) -> str:
    seconds = ", ".join(f"{run.seconds:.1f}" for run in (*measured.stock, measured.shared))
    outcomes = f"{measured.stock[0].outcome} on stock, {measured.shared.outcome} on Shared GPU"
    return f"{measured.name}: {outcomes}; {seconds} s; {len(measured.beyond_floor(measured.shared))} cells differ"
