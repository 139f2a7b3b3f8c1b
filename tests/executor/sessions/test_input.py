"""Cells that ask their user for text."""

from __future__ import annotations

from jupyter_client.asynchronous.client import AsyncKernelClient

from tests.executor.harness import PATIENCE, Executor, ExecutorProcess


async def test_a_client_may_connect_its_socket_for_input_after_the_cell_has_asked(process: ExecutorProcess) -> None:
    """The question is not lost, as ZeroMQ would have it; and so the cell does not wait for ever."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        client = AsyncKernelClient()
        connection = notebook.record.connection
        client.load_connection_info({**connection, "key": connection["key"].encode()})
        client.start_channels(hb=False, stdin=False)
        try:
            client.execute("print('asking', flush=True); print(input())", allow_stdin=True)
            await heard(client, "asking\n")
            client.stdin_channel.start()
            question = await client.get_stdin_msg(timeout=PATIENCE)
            assert question["msg_type"] == "input_request"
            client.input("an answer")
            await heard(client, "an answer\n")
        finally:
            client.stop_channels()
            client.context.term()


async def heard(client: AsyncKernelClient, text: str) -> None:
    """Return once the cell has printed *text*."""
    while True:
        message = await client.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == "stream" and text in message["content"]["text"]:
            return
