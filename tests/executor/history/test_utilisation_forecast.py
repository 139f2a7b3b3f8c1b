"""Utilisation as it is foreseen from what an iteration asks of the device."""

from __future__ import annotations

import os

import pytest

from sharedkernel.executor.history.utilisation_forecast import UtilisationForecast
from sharedkernel.protocol import Foreseen


def work(flops: float, size: float = 1e6, *, seconds: float = 0.01, threads: int = 1) -> Foreseen:
    return Foreseen(iteration_flops=int(flops), iteration_bytes=int(size), iteration_seconds=seconds, threads=threads)


def test_nothing_is_predicted_of_a_device_of_which_nothing_was_measured() -> None:
    """Nor of a session that counted nothing."""
    gpu = UtilisationForecast("cuda")
    assert gpu.predict("ada", work(1e9)) is None
    assert gpu.learn("ada", work(1e9), 0.5)
    assert gpu.predict("ada", Foreseen(iteration_seconds=0.01)) is None
    assert not gpu.learn("ada", Foreseen(iteration_seconds=0.01), 0.5)


def test_what_was_measured_of_one_session_tells_about_others() -> None:
    """Half the operations and bytes in the same time: half as busy; never more than all of the device."""
    gpu = UtilisationForecast("cuda")
    for _ in range(50):
        gpu.learn("ada", work(1e9), 0.8)
    assert gpu.predict("ada", work(1e9)) == pytest.approx(0.8, rel=0.02)
    assert gpu.predict("ada", work(0.5e9, 0.5e6)) == pytest.approx(0.4, rel=0.02)
    assert gpu.predict("ada", work(1e9, seconds=0.02)) == pytest.approx(0.4, rel=0.02)
    assert gpu.predict("ada", work(9e9, 9e6)) == 1.0


def test_the_slower_of_arithmetic_and_memory_counts() -> None:
    """A session that moves as many bytes as another that was all bytes is as busy, however little it computes."""
    gpu = UtilisationForecast("cuda")
    for _ in range(50):
        gpu.learn("ada", work(1e9, 1e3), 1.0)
        gpu.learn("ada", work(1e3, 1e9), 1.0)
    assert gpu.predict("ada", work(1e5, 0.5e9)) == pytest.approx(0.5, rel=0.02)


def test_on_the_host_a_session_of_one_thread_keeps_one_processor_busy() -> None:
    """That needs no measurement; with all threads it depends on what it computes."""
    host, processors = UtilisationForecast("host"), os.cpu_count() or 1
    assert host.predict("ada", Foreseen(threads=1)) == 1 / processors
    if processors > 1:
        assert host.predict("ada", work(1e9, threads=processors)) is None
        for _ in range(50):
            host.learn("ada", work(1e9, threads=processors), 1.0)
        assert host.predict("ada", work(1e9, threads=processors)) == pytest.approx(1.0, rel=0.02)
        half = host.predict("ada", work(0.5e9, 0.5e6, threads=processors))
        assert half == pytest.approx(1 / processors + (1 - 1 / processors) / 2, rel=0.02)


def test_a_liar_spoils_nobody_elses_predictions() -> None:
    """Whatever one user's sessions claim to compute, others are predicted as if nothing had been said."""
    gpu = UtilisationForecast("cuda")
    for _ in range(50):
        gpu.learn("ada", work(1e9), 0.8)
        gpu.learn("grace", work(0.5e9, 0.5e6), 0.4)
    before = {user: gpu.predict(user, work(1e9)) for user in ("ada", "grace", "linus")}
    for flops in (1e30, 1.0) * 50:
        gpu.learn("eve", work(flops, flops), 1.0)
    assert {user: gpu.predict(user, work(1e9)) for user in before} == pytest.approx(before, rel=0.001)
    assert before["linus"] == pytest.approx(0.8, rel=0.02)


def test_one_others_word_is_not_enough() -> None:
    """A newcomer beside a single user is not predicted until measured: nobody confirms what that one says."""
    gpu = UtilisationForecast("cuda")
    gpu.learn("eve", work(1e30, 1e30), 1.0)
    assert gpu.predict("ada", work(1e9)) is None
    for _ in range(50):
        gpu.learn("ada", work(1e9), 0.8)
    assert gpu.predict("ada", work(1e9)) == pytest.approx(0.8, rel=0.02)


def test_users_are_forgotten_whose_measurement_is_longest_ago() -> None:
    """What is remembered stays bounded, however many users come."""
    gpu = UtilisationForecast("cuda")
    for user in range(2000):
        gpu.learn(f"user-{user}", work(1e9), 0.5)
    assert len(gpu.learned) == 1000
    assert gpu.learn("user-0", work(1e9), 0.5) in gpu.learned
