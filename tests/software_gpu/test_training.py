"""Trainings on the software GPU give the CPU's losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.software_gpu


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    """A small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.body(self.embedding(tokens)).mean(1))


def layers() -> Any:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 10))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "layers": (layers, lambda: torch.randn(32, 64)),
    "convolutions": (convolutions, lambda: torch.randn(32, 1, 8, 8)),
    "attention": (Attention, lambda: torch.randint(50, (32, 12))),
}


def losses(name: str, device: str, optimizer: str) -> list[float]:
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model, batch, labels = make().to(device), inputs().to(device), torch.randint(10, (32,)).to(device)
    steps = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2)
    found = []
    for _ in range(10):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        steps.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_equal_those_of_the_cpu(name: str, optimizer: str) -> None:
    """They do so in fp32 on one thread, and the model learns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = losses(name, "cpu", optimizer)
        assert losses(name, "cuda", optimizer) == pytest.approx(expected, rel=1e-6)
    finally:
        torch.set_num_threads(threads)
    assert expected[-1] < expected[0]
