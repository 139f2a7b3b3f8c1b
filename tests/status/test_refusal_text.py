"""Refusals in words: who had what, and what to do."""

from __future__ import annotations

import dataclasses

import pytest

from sharedkernel.protocol import Allowance
from sharedkernel.shortage import Shortage
from sharedkernel.status.refusal_text import explain_lease, explain_shortage

MIB = 1 << 20
SHORTAGE = Shortage(
    reason="quota", purpose="iteration", wanted=300 * MIB, quota=500 * MIB, sessions=250 * MIB, shelf=0,
    kept=100 * MIB, room=800 * MIB, capacity=1000 * MIB, reserve=100 * MIB, free=50 * MIB, lanes=400 * MIB,
)  # fmt: skip


def test_a_quota_is_explained_with_what_has_it() -> None:
    """Everybody who refuses over a quota says it alike."""
    advice = "Nothing was lost: free what you no longer need (`del name`), or shut down another of your notebooks, and "
    assert explain_shortage(dataclasses.replace(SHORTAGE, shelf=MIB)) == (
        "this needs 300 MiB more while it runs: your quota is 500 MiB, your sessions use 250 MiB, your shelf 1.0 MiB. "
        f"{advice}run the cell again."
    )
    allowance = Allowance(
        limit_bytes=100 * MIB, quota_bytes=500 * MIB, others_bytes=250 * MIB, capacity_bytes=1000 * MIB
    )
    assert explain_lease("This session uses 300 MiB", allowance) == (
        "This session uses 300 MiB, and may use 100 MiB: your quota is 500 MiB, your other sessions use 250 MiB, the "
        "device has 1000 MiB, of which the sessions of others and what every session's process needs take 650 MiB. "
        f"{advice}run the cell again."
    )


def test_a_device_with_room_is_not_mentioned() -> None:
    """Nor are notebooks that there are not: the one that asked has all of the quota."""
    allowance = Allowance(limit_bytes=512 * MIB, quota_bytes=512 * MIB, others_bytes=0, capacity_bytes=9 << 30)
    assert explain_lease("This session uses 191 MiB, asked for 381 MiB more", allowance) == (
        "This session uses 191 MiB, asked for 381 MiB more, and may use 512 MiB: your quota is 512 MiB, your other "
        "sessions use 0 B. Nothing was lost: free what you no longer need (`del name`), and run the cell again."
    )


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({}, "this needs 300 MiB more while it runs: your quota is 500 MiB, your sessions use 250 MiB. Nothing"),
        (
            {"wanted": None, "shelf": MIB},
            "this needs more memory: your quota is 500 MiB, your sessions use 250 MiB, your",
        ),
        ({"purpose": "restore"}, "bringing back this notebook's offloaded memory takes 300 MiB: your quota is 500 MiB"),
        ({"reason": "no_lane_fits"}, "this needs 300 MiB while it runs, but the device has 800 MiB beside what this"),
        ({"reason": "no_lane_fits", "room": -1}, "this needs 300 MiB while it runs, but the device has 0 B beside"),
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
