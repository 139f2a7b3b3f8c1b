"""Libraries that look closely at the process or the code that they run in."""

from __future__ import annotations

from tests.unmodified.support import Pair, needs


def test_where_modules_are_looked_for(pair: Pair) -> None:
    """In the notebook's folder, before what is installed; a user's own packages may be among that."""
    printed = pair.check(
        """
        %%writefile beside.py
        name = "a module beside the notebook"
        """,
        """
        import sys

        import beside

        print(sys.path[: sys.path.index("") + 1])
        print(beside.name)
        """,
    )
    assert "beside the notebook" in printed


@needs("numba")
def test_numba(pair: Pair) -> None:
    """Functions with loops compile without Python objects."""
    printed = pair.check(
        """
        import numba
        import numpy

        @numba.njit
        def total(values):
            result = 0.0
            for index in range(len(values)):
                for other in values:
                    result += values[index] * other
            return result

        @numba.vectorize(["float64(float64)"])
        def squared(value):
            return value * value

        values = numpy.arange(10.0)
        print(total(values), squared(values), total.nopython_signatures)
        """
    )
    assert printed.startswith("2025.0")


@needs("lightning")
def test_lightning(pair: Pair) -> None:
    """A Trainer logs, fits, checkpoints and tests the same."""
    printed = pair.check(
        """
        import warnings

        warnings.simplefilter("ignore")
        import lightning
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        class Regression(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch, index):
                inputs, targets = batch
                loss = torch.nn.functional.mse_loss(self.layer(inputs).squeeze(-1), targets)
                self.log("loss", loss)
                return loss

            def test_step(self, batch, index):
                self.log("test_loss", self.training_step(batch, index))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        lightning.seed_everything(0)
        inputs = torch.randn(64, 4)
        loader = DataLoader(TensorDataset(inputs, inputs.sum(1)), batch_size=16)
        """,
        """
        trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False)
        model = Regression()
        trainer.fit(model, loader)
        """,
        """
        print(trainer.test(model, loader, verbose=False), trainer.global_step)
        """,
    )
    assert printed.endswith("12\n")
