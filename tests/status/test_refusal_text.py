"""Refusals in words: who had what, and what to do."""

from __future__ import annotations

import dataclasses

import pytest

from sharedkernel.protocol import Allowance
from sharedkernel.quota_check import QuotaUse, Shortage
from sharedkernel.status.refusal_text import explain_lease, explain_shortage

MIB = 1 << 20
SHORTAGE = Shortage(
    reason="quota", purpose="iteration", wanted=300 * MIB, use=QuotaUse(quota=500 * MIB, sessions=250 * MIB),
    kept=100 * MIB, room=800 * MIB, capacity=1000 * MIB, reserve=100 * MIB, free=50 * MIB, lanes=400 * MIB,
)  # fmt: skip


def test_a_quota_is_explained_with_what_has_it() -> None:
    """Everybody who refuses over a quota says it alike; notebooks and devices that matter not are not mentioned."""
    text = explain_shortage(dataclasses.replace(SHORTAGE, use=dataclasses.replace(SHORTAGE.use, shelf=MIB)))
    assert text.startswith(
        "this needs 300 MiB more while it runs: your quota is 500 MiB, your sessions use 250 MiB, your shelf 1.0 MiB. "
    )
    advice = text.partition("1.0 MiB. ")[2]
    assert "(`del name`), or shut down another of your notebooks" in advice
    allowance = Allowance(
        limit_bytes=100 * MIB, quota_bytes=500 * MIB, others_bytes=250 * MIB, capacity_bytes=1000 * MIB
    )
    text = explain_lease("This session uses 300 MiB", allowance)
    for part in ("and may use 100 MiB: your quota is 500 MiB", "other sessions use 250 MiB", "1000 MiB", "650 MiB"):
        assert part in text
    assert text.endswith(advice)
    alone = Allowance(limit_bytes=512 * MIB, quota_bytes=512 * MIB, others_bytes=0, capacity_bytes=9 << 30)
    text = explain_lease("This session uses 191 MiB", alone)
    assert "your quota is 512 MiB, your other sessions use 0 B. Nothing was lost" in text
    assert "another" not in text


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({}, "this needs 300 MiB more while it runs: your quota is 500 MiB, your sessions use 250 MiB. Nothing"),
        ({"wanted": None}, "this needs more memory: your quota is 500 MiB"),
        ({"purpose": "restore"}, "bringing back this notebook's offloaded memory takes 300 MiB: your quota is 500 MiB"),
        ({"reason": "no_lane_fits"}, "this needs 300 MiB while it runs, but the device has 800 MiB beside what this"),
        ({"reason": "memory"}, "this needs 300 MiB while it runs, but only 50.0 MiB of 1000 MiB are free: 400 MiB are"),
        ({"reason": "memory", "purpose": "growth"}, "this needs 300 MiB more than it has, but only 50.0 MiB of 1000"),
        (
            {"reason": "memory", "waited": 3.0, "holders": (("bob", 9 * MIB),)},
            "this needs 300 MiB while it runs, but only 50.0 MiB of 1000 MiB are free after 3.0 s of waiting: user bob "
            "keeps 9.0 MiB, 400 MiB are set aside for iterations;",
        ),
    ],
)
def test_a_shortage_is_one_sentence_with_its_figures(changes: dict[str, object], begins: str) -> None:
    """What was wanted, what there is, who has the rest, and what to do."""
    text = explain_shortage(dataclasses.replace(SHORTAGE, **changes))  # type: ignore[arg-type]
    assert text.startswith(begins)
    assert text.endswith(".")
