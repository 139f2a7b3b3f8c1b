"""Errors of cells, as clients hear of them."""

from __future__ import annotations

from tests.session.harness import SessionUnderTest


def test_an_error_that_cannot_be_formatted_is_shown_plainly(session: SessionUnderTest) -> None:
    """As where an interrupt comes between two lines in Python 3.11, and IPython finds no line's number."""
    reply = session.run(
        "def fail(): raise KeyError('here')\nfail.__code__ = fail.__code__.replace(co_linetable=b'')\nfail()"
    )
    assert reply["errors"] == ["KeyError"]
    assert reply["traceback"][-1] == "KeyError: 'here'"
    assert reply["text"] == ""


def test_an_error_is_shown_in_full_at_the_memory_limit(session: SessionUnderTest) -> None:
    """What formats it needs memory, too; then the limit holds again."""
    reply = session.run(
        "import psutil, resource, torch\n"
        "limit = psutil.Process().memory_info().data + (4 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (limit, -1))\n"
        "torch.ones(256 << 20)"  # more than can be free on the heap, however that has grown
    )
    assert reply["errors"] == ["RuntimeError"]
    assert any("torch.ones" in line for line in reply["traceback"])
    assert session.run("print(resource.getrlimit(resource.RLIMIT_DATA)[0] == limit)")["text"] == "True\n"


def test_code_for_a_gpu_is_told_that_there_is_none(session: SessionUnderTest) -> None:
    """Below torch's own error, once."""
    reply = session.run("torch.ones(1, device='cuda')")
    assert reply["ename"] in ("AssertionError", "RuntimeError")  # built without CUDA, or on a machine without a driver
    assert "\n".join(reply["traceback"]).count("The device here is the gateway's CPU. Write device='cpu'") == 1
    assert "gateway's CPU" not in "\n".join(session.run("raise AssertionError")["traceback"])
