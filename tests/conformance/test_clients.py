"""The clients that people run notebooks with, as they come, on tensors of the shared device.

A stock Jupyter server with `--gateway-url` is in `tests/gateway/test_stock_clients.py`, JupyterLab in `tests/browser`;
nbclient by itself and the console, with interrupts and ends, in `tests/client/relay/test_clients.py`.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import papermill

#: seconds that a client may take, on a busy machine
PATIENCE = 60
TRAINING = """\
import torch
weights = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.5)
for step in range(steps):
    optimizer.zero_grad()
    loss = ((weights - 1) ** 2).sum()
    loss.backward()
    optimizer.step()
weights.sum().item()"""


def notebook() -> nbformat.NotebookNode:
    """Return a notebook that was written for a kernel of its author's, and knows nothing of a shared one."""
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    parameters = nbformat.v4.new_code_cell("steps = 1", metadata={"tags": ["parameters"]})
    cells = [parameters, nbformat.v4.new_code_cell(TRAINING)]
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec})


def result_of(notebook: nbformat.NotebookNode) -> str:
    """Return what the last cell gave."""
    return str(notebook.cells[-1].outputs[-1].data["text/plain"])


def test_papermill(tmp_path: Path) -> None:
    """A parameter reaches the session, and its result the other file."""
    nbformat.write(notebook(), tmp_path / "in.ipynb")
    papermill.execute_notebook(
        tmp_path / "in.ipynb",
        tmp_path / "out.ipynb",
        parameters={"steps": 0},
        kernel_name="shared-gpu",
        progress_bar=False,
    )
    assert result_of(nbformat.read(tmp_path / "out.ipynb", as_version=4)) == "0.0"
