"""JupyterLab's debugger, where all sessions are of one user; where they are not, see `isolation/test_tenants.py`."""

from __future__ import annotations

from typing import Any

from tests.executor.harness import PATIENCE, Executor, ExecutorProcess, Notebook


async def debug(notebook: Notebook, command: str, **arguments: Any) -> dict[str, Any]:
    """Return the content of the reply to a request of JupyterLab's debugger."""
    client = notebook.client
    content = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
    request = client.session.msg("debug_request", content)
    client.control_channel.send(request)
    while True:
        reply = await client.get_control_msg(timeout=PATIENCE)
        if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
            return dict(reply["content"])


async def test_it_can_be_used(process: ExecutorProcess) -> None:
    """It is offered, and starts."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        information = await notebook.client.kernel_info(reply=True)
        assert "debugger" in information["content"]["supported_features"]
        assert (await debug(notebook, "initialize", clientID="c", adapterID="", pathFormat="path"))["success"]
        assert (await debug(notebook, "disconnect", restart=False, terminateDebuggee=False))["success"]
