"""The clients that people use, each with the installed kernelspec and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import nbformat
import pexpect
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from tests.client.relay.support import TIMEOUT, GatewayProcess, new_notebook

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def credentials(contract_gateway: GatewayProcess) -> Iterator[None]:
    """Put the gateway's address and the token into the environment, where every client passes them on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHAREDKERNEL_GATEWAY_URL", contract_gateway.url)
        patch.setenv("SHAREDKERNEL_TOKEN", contract_gateway.token)
        yield


def test_nbclient_interrupts_a_cell_that_takes_too_long() -> None:
    """And the next cell runs."""
    cells = new_notebook("import time\ntime.sleep(60)", "print('next')")

    def seconds(cell: nbformat.NotebookNode) -> float:
        return 1.0 if "sleep" in cell.source else TIMEOUT

    run = NotebookClient(cells, timeout_func=seconds, interrupt_on_timeout=True, allow_errors=True).execute()
    assert run.cells[0].outputs[-1].ename == "KeyboardInterrupt"
    assert run.cells[1].outputs[0].text == "next\n"


def test_nbclient_reports_a_session_that_died() -> None:
    """It neither hangs nor waits for its time to run out."""
    with pytest.raises(CellExecutionError, match="SharedGPUSessionDied") as caught:
        NotebookClient(new_notebook("import os; os._exit(3)"), timeout=TIMEOUT).execute()
    assert not isinstance(caught.value, CellTimeoutError)


def test_jupyter_console_talks() -> None:
    """Input and output, an interrupt, and the end of the session with the console's."""
    command = [
        "-m", "jupyter_console", "--kernel", "shared-gpu", "--simple-prompt",
        "--ZMQTerminalInteractiveShell.include_other_output=False", "--ZMQTerminalInteractiveShell.banner=",
    ]  # fmt: skip
    console = pexpect.spawn(
        sys.executable, command, env=os.environ | {"JUPYTER_CONSOLE_TEST": "1"}, timeout=TIMEOUT, encoding="utf-8"
    )
    try:
        console.expect_exact("In [1]:")
        console.sendline("6 * 7")
        console.expect_exact("42")
        console.sendline("import time; print('begun'); time.sleep(60)")
        console.expect_exact("begun\r\n")
        console.sendintr()
        console.expect_exact("KeyboardInterrupt")
        console.expect(r"In \[\d+\]:")
        console.sendeof()
        console.expect_exact("Do you really want to exit")
        console.sendline("y")
        console.expect(pexpect.EOF)
    finally:
        console.close(force=True)
