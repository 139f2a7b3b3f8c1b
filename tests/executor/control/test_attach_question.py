"""``%shared attach`` asks the gateway, and prints the answer to its question, not what else is said meanwhile."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.executor.harness import Executor, ExecutorProcess


async def test_what_else_there_is_to_say_is_no_answer(process: ExecutorProcess) -> None:
    """A notice that comes first, and an answer that came too late for the cell that asked, are shown as notices."""
    async with Executor(process) as executor:
        notebook = await executor.notebook()
        questions: asyncio.Queue[int] = asyncio.Queue()
        executor.client.on_earlier_wanted = lambda _session, question: questions.put_nowait(question)

        tell = partial(executor.client.notify_session, notebook.session)

        asking = asyncio.create_task(notebook.run("%shared attach"))
        first = await questions.get()
        await tell("Something else.")
        await tell("The answer.", question=first)
        assert sorted((await asking).text.splitlines()) == ["The answer.", "⚠ Something else."]

        asking = asyncio.create_task(notebook.run("%shared attach"))
        second = await questions.get()
        assert second != first
        await tell("The first answer once more.", question=first)
        await tell("Another answer.", question=second)
        assert sorted((await asking).text.splitlines()) == ["Another answer.", "⚠ The first answer once more."]

        # cells wait for a session that takes the place of theirs; they go on here if that comes to nothing
        asking = asyncio.create_task(notebook.run("%shared attach"))
        await tell("It takes the place of this one.", question=await questions.get(), holds_cells=True)
        assert (await asking).text.strip() == "It takes the place of this one."
        waiting = asyncio.create_task(notebook.run("1 + 1"))
        await tell("Something else.")
        await asyncio.sleep(1)
        assert not waiting.done()
        await tell("")
        assert (await waiting).text == "2"
