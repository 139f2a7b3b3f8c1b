"""No session to be had: what a person reads in the notebook, and how it goes on."""

from __future__ import annotations

import pytest

from tests.client.relay.support import TIMEOUT, GatewayProcess, Line, Notebook

SENTENCE = "you have 2 sessions already, which is your limit; shut one down and run the cell again."


@pytest.fixture
def refused(contract_gateway: GatewayProcess) -> Notebook:
    """Return a client that the gateway refuses at first."""
    return Notebook(contract_gateway.url, contract_gateway.token)


@pytest.mark.heavy
def test_a_refusal_is_readable_and_ends_when_its_reason_does(
    contract_gateway: GatewayProcess, refused: Notebook
) -> None:
    """The gateway's sentence is the cell's error; once a session is free the same cell runs.

    Clients wait for each message of a cell, in this order, and for replies to other requests; what a client runs for
    itself shows nowhere.
    """
    with contract_gateway.refusing(429, SENTENCE, "sessions") as stop_refusing, refused:
        for _ in range(2):
            outcome = refused.run("print('hello')")
            assert outcome.error == f"SharedGPURefused: {SENTENCE}"
            kinds = [message["msg_type"] for message in outcome.messages]
            assert kinds == ["status", "execute_input", "error", "status"]
            assert [content["execution_state"] for content in outcome.of_type("status")] == ["busy", "idle"]
            assert outcome.of_type("execute_input")[0]["code"] == "print('hello')"
            (error,) = outcome.of_type("error")
            (traceback,) = error["traceback"]
            assert SENTENCE in traceback
        silent = refused.run("1", silent=True)
        assert silent.status == "error"
        assert {message["msg_type"] for message in silent.messages} == {"status"}
        client = refused.client
        info = client.kernel_info(reply=True, timeout=TIMEOUT)["content"]
        assert info["language_info"]["name"] == "python"
        assert SENTENCE in info["banner"]
        assert client.complete("pri", reply=True, timeout=TIMEOUT)["content"]["status"] == "error"
        assert client.history(reply=True, timeout=TIMEOUT)["content"]["history"] == []
        assert client.comm_info(reply=True, timeout=TIMEOUT)["content"]["comms"] == {}
        assert refused.control("interrupt_request")["content"]["status"] == "ok"
        stop_refusing()
        assert refused.run("print('hello')").text() == "hello\n"


def test_the_cells_behind_a_refused_one_are_aborted(contract_gateway: GatewayProcess, refused: Notebook) -> None:
    """A notebook that runs as a whole says once what is wrong."""
    with contract_gateway.refusing(503, "the executor is away; try again in a minute.", "executor"), refused:
        with contract_gateway.stopped():
            cells = [refused.client.execute(f"print({number})") for number in range(3)]
            # Time for all three to be at the relay, which would meet one that comes after the refusal as a first one. A
            # relay that has stood still reads what came on all of its sockets before it does something else twice.
            assert not refused.client.shell_channel.socket.poll(300)
            for _ in range(2):
                with refused.another_client(shell=False, stdin=False, control=False) as second:
                    # A state that the one before is told of may come before its own welcome.
                    while second.get_iopub_msg(timeout=TIMEOUT)["msg_type"] != "iopub_welcome":
                        pass
        replies = [refused.client.get_shell_msg(timeout=TIMEOUT) for _ in cells]
    assert [reply["parent_header"]["msg_id"] for reply in replies] == cells
    assert [reply["content"]["status"] for reply in replies] == ["error", "aborted", "aborted"]


def test_each_obstacle_has_its_sentence(contract_gateway: GatewayProcess) -> None:
    """The kernel is there, and each cell says what is wrong and what to do."""
    for url, token, error in (
        (None, None, "SharedGPUNotSetUp: this computer knows no gateway yet; run `sharedkernel install"),
        (f"{contract_gateway.url}/elsewhere", "a-token", "SharedGPURefused: the gateway at http://127.0.0.1:"),
    ):
        with Notebook(url, token) as notebook:
            assert notebook.run("1").error.startswith(error)


def test_a_gateway_that_comes_up_later_is_found(contract_gateway: GatewayProcess) -> None:
    """Nothing has to be restarted when the first cell came too early."""
    line = Line(contract_gateway.port)
    with Notebook(line.url, contract_gateway.token) as notebook:
        assert notebook.run("1").error.startswith("SharedGPUUnreachable: no gateway answers at http://127.0.0.1:")
        with line:
            assert notebook.run("print('hello')").text() == "hello\n"
            notebook.manager.shutdown_kernel()
