"""``sharedkernel simulate class``: the answer in words, and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_simulate import simulate

SMALL = ("class", "--students", 4, "--hours", "10m")


def test_the_answer_is_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 80 columns, contexts of idle notebooks counted."""
    monkeypatch.setenv("COLUMNS", "80")
    output, errors = simulate(capsys, *SMALL, "--device", "24GiB")
    assert errors == ""
    assert output.startswith("Yes: 24.0 GiB will do for 4 students. The contexts of 4 students take 1.")
    assert max(map(len, output.splitlines())) <= 80


def test_too_small_a_card_is_said_with_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    """Contexts alone fill it."""
    output, _ = simulate(capsys, "class", "--students", 12, "--hours", "5m", "--device", "4GiB")
    text = " ".join(output.split())
    assert text.startswith("No: 4.0 GiB will not do for 12 students.")
    assert "That leaves no room for a notebook's 512 MiB. About 7 notebooks fit" in text


def test_figures_and_a_plot_are_as_of_other_scenarios(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Programs read the JSON; several policies are compared on the same class."""
    picture = tmp_path / "class.svg"
    output, _ = simulate(capsys, *SMALL, "--compare", "fair,fifo", "--json", "--plot", picture)
    figures = json.loads(output)
    assert [entry["policy"] for entry in figures] == ["fair", "fifo"]
    assert {entry["students"] for entry in figures} == {4}
    assert figures[0]["verdict"] == "yes"
    assert figures[0]["context_bytes"] == figures[1]["context_bytes"] > 4 * (300 << 20)
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--students", "0"], "--students is 1 to 500"),
        (["--device", "large"], "'large' is not an amount of memory"),
        (["--hours", "9h"], "--hours is 1 minute to 8 hours"),
        (["--policy", "best"], "there is no policy 'best' here"),
    ],
)
def test_wrong_use_is_one_sentence_and_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """Nothing is simulated."""
    with pytest.raises(SystemExit) as ended:
        simulate(capsys, "class", *arguments)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
