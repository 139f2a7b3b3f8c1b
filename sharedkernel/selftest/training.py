"""A small training whose losses are the same on every device, but for rounding."""

from __future__ import annotations

import math

import torch

#: how far losses may be from the processor's: a card may add up in another order
_TOLERANCE = 1e-3


class Training:
    """Trains two layers by hand, with momentum: importing an optimizer takes longer than the training.

    Parameters
    ----------
    device
        Where.
    seed
        Of weights and data.
    """

    def __init__(self, device: str, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        shapes = ((256, 512), (512, 10))
        weights = [torch.randn(shape, generator=generator) / math.sqrt(shape[0]) for shape in shapes]
        self._weights = [weight.to(device).requires_grad_() for weight in weights]
        self._inputs = torch.randn(64, 256, generator=generator).to(device)
        #: made in the first pass, as an optimizer's state is
        self._momenta: list[torch.Tensor] = []

    def step(self) -> float:
        """Train for one pass; return its loss."""
        first, second = self._weights
        loss = (torch.relu(self._inputs @ first) @ second).square().mean()
        gradients = torch.autograd.grad(loss, self._weights)
        if not self._momenta:
            self._momenta = [torch.zeros_like(weight) for weight in self._weights]
        with torch.no_grad():
            for weight, momentum, gradient in zip(self._weights, self._momenta, gradients, strict=True):
                momentum.mul_(0.9).add_(gradient)
                weight.sub_(momentum, alpha=0.05)
        return float(loss.detach())


def check_losses(losses: list[float], seed: int) -> None:
    """Compare losses with the processor's.

    Parameters
    ----------
    losses
        One for each pass, on the GPU.
    seed
        Of the training.

    Raises
    ------
    RuntimeError
        When they differ.
    """
    reference = Training("cpu", seed)
    for number, loss in enumerate(losses):
        expected = reference.step()
        if not math.isclose(loss, expected, rel_tol=_TOLERANCE):
            raise RuntimeError(f"pass {number} of a training has the loss {loss:.6g}, and {expected:.6g} is right")
