"""Models whose memory and speed Salus's authors published: what the workloads of one device are built from.

Figures are those of "Salus: Fine-Grained GPU Sharing Primitives for Deep Learning Applications" (MLSys 2020), from the
profiles that its authors publish beside their code, measured on a P100 of 16 GB with TensorFlow 1: what a model keeps
between iterations, its peak, and how long an iteration takes (ten minutes' run over its iterations, start included;
None where no run was published). Memory is in MiB, rounded to a tenth, times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One model at one batch size."""

    #: ``MODEL_BATCH``
    name: str
    #: bytes kept between iterations
    persistent: int
    #: bytes at the peak of an iteration
    peak: int
    #: seconds of an iteration; None: not published
    iteration: float | None

    @property
    def ephemeral(self) -> int:
        """Bytes that an iteration needs beyond what is kept."""
        return self.peak - self.persistent


# fmt: off
#: training: (batch, iteration, persistent, peak) by model
_TRAINING: Mapping[str, tuple[tuple[str, float | None, float, float], ...]] = {
    "alexnet": (("25", 21.5, 265.4, 1049.9), ("50", 29.6, 294.9, 1237.9), ("100", 45.7, 353.9, 1614.0)),
    "googlenet": (("25", 60.6, 71.7, 1396.3), ("50", 102.7, 129.8, 2034.8), ("100", 184.9, 216.0, 3311.7)),
    "inception3": (("25", 208.0, 235.0, 4544.1), ("50", 383.3, 380.2, 6883.1), ("100", 735.4, 591.3, 11561.0)),
    "inception4": (("25", 437.9, 372.2, 7440.2), ("50", 798.7, 587.8, 11355.1), ("75", 1163.8, 759.5, 14735.0)),
    "overfeat": (("25", 50.8, 587.2, 3694.1), ("50", 64.5, 617.8, 3898.8), ("100", 100.1, 678.8, 4308.3)),
    "resnet101": (("25", 228.8, 282.9, 5650.1), ("50", 406.0, 456.0, 8654.6), ("75", 584.0, 702.3, 11659.0)),
    "resnet152": (("25", 335.6, 350.1, 6980.0), ("50", 595.8, 575.8, 11190.3), ("75", 855.5, 822.2, 14993.4)),
    "resnet50": (("25", 129.3, 227.4, 4528.3), ("50", 233.6, 339.0, 6556.5), ("75", 337.4, 459.4, 8584.8)),
    "seq2seq": (("small", None, 22.0, 83.3), ("medium", None, 80.0, 1042.7), ("large", None, 257.0, 5124.4)),
    "speech": (("25", None, 493.5, 2253.6), ("50", None, 493.8, 3993.3), ("75", None, 494.1, 5733.2)),
    "superres": (("32", None, 17.5, 270.3), ("64", None, 31.7, 528.7), ("128", None, 60.4, 1053.4)),
    "vae": (("64", None, 20.5, 24.0), ("128", None, 20.9, 27.5), ("256", None, 21.7, 34.9)),
    "vgg11": (("25", 107.2, 535.6, 4218.4), ("50", 187.9, 564.3, 5236.7), ("100", 340.7, 621.7, 7343.1)),
    "vgg16": (("25", 194.4, 556.6, 4889.4), ("50", 360.4, 585.3, 6742.3), ("100", 677.2, 642.7, 9613.5)),
    "vgg19": (("25", 227.4, 576.8, 4929.9), ("50", 423.8, 605.5, 6762.5), ("100", 794.7, 663.0, 9782.8)),
}
#: inference, one request at a time: (persistent, peak) by model
_INFERENCE: Mapping[str, tuple[float, float]] = {
    "alexnet": (237.1, 572.8), "googlenet": (37.9, 734.4), "inception3": (106.3, 2121.4),
    "inception4": (172.2, 3443.6), "overfeat": (557.9, 2937.8), "resnet101": (171.5, 2488.6),
    "resnet152": (231.4, 2548.4), "resnet50": (124.4, 2415.9), "speech": (116.4, 144.2),
    "superres": (0.9, 137.1), "vae": (5.0, 6.5), "vgg11": (508.0, 2710.8),
    "vgg16": (529.0, 2731.8), "vgg19": (549.2, 2752.1),
}
# fmt: on


def _profile(name: str, iteration: float | None, persistent: float, peak: float) -> ModelProfile:
    return ModelProfile(
        name=name,
        persistent=round(persistent * _MEBIBYTE),
        peak=round(peak * _MEBIBYTE),
        iteration=None if iteration is None else iteration / 1000,
    )


#: the 45 trainings by name
TRAINING: Mapping[str, ModelProfile] = {
    f"{model}_{batch}": _profile(f"{model}_{batch}", iteration, persistent, peak)
    for model, rows in _TRAINING.items()
    for batch, iteration, persistent, peak in rows
}

#: the 14 models for inference by name
INFERENCE: Mapping[str, ModelProfile] = {
    model: _profile(f"{model}_1", None, persistent, peak) for model, (persistent, peak) in _INFERENCE.items()
}
