"""What follows from the results of steps, and how it is told."""

from __future__ import annotations

import pytest

from sharedkernel.device_memory.mode import DeviceMemoryMode
from sharedkernel.selftest.__main__ import find
from sharedkernel.selftest.steps import STEPS, Outcome, StepResult, judge, steps_up_to, table

SHARED, PRIVATE, PLAIN = DeviceMemoryMode.SHARED, DeviceMemoryMode.PRIVATE, DeviceMemoryMode.PLAIN


def results(**failures: str) -> list[StepResult]:
    """Return the results of all steps, of which those named fail for a reason."""
    return [
        StepResult(
            step=step.name,
            outcome=Outcome.FAILED if step.name.replace("-", "_") in failures else Outcome.PASSED,
            seconds=0.5,
            why=failures.get(step.name.replace("-", "_"), ""),
        )
        for step in STEPS
    ]


def test_every_step_has_a_function() -> None:
    """Named as the step."""
    for step in STEPS:
        assert find(step.name).__doc__


@pytest.mark.parametrize(
    ("failures", "mode"),
    [
        ({}, SHARED),
        ({"side_stream": "x"}, PRIVATE),
        ({"side_stream": "x", "peaks": "x"}, PLAIN),
        ({"tensors_moved": "x"}, PLAIN),
        ({"training": "x"}, PLAIN),
    ],
)
def test_the_best_mode_is_used_that_needs_nothing_that_failed(failures: dict[str, str], mode: DeviceMemoryMode) -> None:
    """Nor does any plainer one; plain mode is used whatever fails."""
    assert judge(results(**failures), SHARED).mode is mode


def test_a_step_without_a_result_did_not_run() -> None:
    """As one whose process never came to it: it has not failed, and what needs it is not used."""
    verdict = judge(results()[:-1], SHARED)
    assert verdict.mode is PRIVATE
    assert not verdict.failed
    assert [(result.step, result.why) for result in verdict.left_out] == [("killed-holder", "it has no result")]
    assert verdict.sentence == (
        "the self-test did not run killed-holder (it has no result); in this run sessions' ephemeral memory is their "
        "own, and given back at a switch."
    )
    assert "Not run: it has no result." in table(verdict)


def test_what_cannot_be_had_is_not_tried_and_not_failed() -> None:
    """The driver has no memory that can be shared."""
    assert {step.mode for step in steps_up_to(PRIVATE)} == {PRIVATE, PLAIN}
    verdict = judge(results(), PRIVATE, why_not_better="the driver is too old")
    assert verdict.mode is PRIVATE
    assert verdict.is_whole
    assert "Not run: the driver is too old." in table(verdict)


def test_one_sentence_says_what_is_switched_off() -> None:
    """The first failure with its reason, and how many more there are."""
    verdict = judge(results(offload="other bytes", hand_over="it took longer than 20 s"), SHARED)
    assert verdict.sentence == (
        "the self-test failed at hand-over (it took longer than 20 s), and 1 more; in this run sessions' ephemeral "
        "memory is their own, and given back at a switch."
    )
    assert (
        judge(results(), SHARED).sentence == "the self-test found nothing wrong; steps tried: 13 in 6.5 s, trusted: 0."
    )
