"""Libraries that compute in threads of their own: their results are those of a stock kernel."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

from benchmarks.stack.client import open_notebook
from benchmarks.stack.servers import gateway_route
from benchmarks.stack.trainings import ENDLESS, prepare, read_status, service_by_user, until_under_way
from sharedkernel.local_stack import LocalStack
from tests.unmodified.support import Pair, needs

_MODEL = """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1))

    def infer(number):
        with torch.no_grad():
            for _ in range(20):
                result = model(torch.full((1, 8), float(number)))
        return round(result.item(), 6)
"""

#: no library asks the network for anything
_OFFLINE = """
    import logging, os, warnings

    os.environ |= {"HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False", "NO_PROXY": "127.0.0.1,localhost"}
    os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
    warnings.simplefilter("ignore")
"""

_LANGUAGE_MODEL = """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
"""

_GRADIO = """
    import gradio

    app = gradio.Interface(infer, gradio.Number(), gradio.Number(), api_name="infer", concurrency_limit=20)
    _, url, _ = app.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, inline=False)
"""


def test_threads_of_the_standard_library(pair: Pair) -> None:
    """Pools give the main thread's results, in order, and their errors to the cell that asks for the result.

    Tasks of asyncio's and timers compute after their cells have ended, also where a timer starts the next one itself. A
    thread forks workers and trains on what they read; the main thread computes meanwhile.
    """
    printed = pair.check(
        _MODEL,
        """
        import multiprocessing.pool
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(4) as pool, multiprocessing.pool.ThreadPool(4) as other:
            found = [list(each.map(infer, range(40))) for each in (pool, other)]
            wrong = pool.submit(lambda: model(torch.ones(1, 9)))
            right = pool.submit(infer, 1)
        print(found, type(wrong.exception()).__name__, wrong.exception(), right.result() == infer(1))
        """,
        "print([results == [infer(number) for number in range(40)] for results in found])",
        """
        import asyncio

        print(await asyncio.gather(*(asyncio.to_thread(infer, number) for number in range(8))))
        """,
        "task = asyncio.create_task(asyncio.to_thread(infer, 3))",
        "print(await task == infer(3))",
        """
        import queue, threading

        results = queue.SimpleQueue()

        def step(number):
            results.put(infer(number))
            if number:
                threading.Timer(0.01, step, (number - 1,)).start()

        threading.Timer(0.01, step, (4,)).start()
        """,
        "in_order = [results.get(timeout=60) for _ in range(5)] == [infer(number) for number in range(4, -1, -1)]",
        """
        import threading
        from torch.utils.data import DataLoader, Dataset

        class Numbers(Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, index):
                inputs = torch.arange(8.0) * index / 64
                return inputs, inputs.sum().reshape(1)

        losses = []

        def train():
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for _ in range(2):
                for inputs, targets in DataLoader(Numbers(), batch_size=8, num_workers=2):
                    optimizer.zero_grad()
                    loss = (model(inputs) - targets).square().mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(round(loss.item(), 4))

        thread = threading.Thread(target=train)
        thread.start()
        while thread.is_alive():
            torch.ones(100, 100) @ torch.ones(100, 100)
        print(losses)
        """,
        "print(in_order, len(losses))",
    )
    assert printed == "True 16\n"


@needs("transformers", "accelerate")
def test_a_streamer_and_a_trainer_of_transformers(pair: Pair) -> None:
    """`generate` runs in a thread while the cell prints what the streamer yields.

    The trainer's data is read by two worker processes; in a cell, and in a thread.
    """
    printed = pair.check(
        _OFFLINE,
        _LANGUAGE_MODEL,
        """
        import threading
        from transformers import TextIteratorStreamer

        class Letters:
            def decode(self, tokens, **options):
                return " ".join(f"t{int(token)}" for token in tokens) + " "

        def stream(**options):
            streamer = TextIteratorStreamer(Letters(), timeout=100)
            prompt = torch.tensor([[1, 2, 3]])
            options |= {"attention_mask": torch.ones_like(prompt), "streamer": streamer, "max_new_tokens": 40}
            thread = threading.Thread(target=model.generate, args=(prompt,), kwargs=options)
            thread.start()
            pieces = list(streamer)
            thread.join()
            return pieces

        pieces = stream(do_sample=False, eos_token_id=None)
        print(pieces)
        """,
        """
        torch.manual_seed(1)
        print(stream(do_sample=True, top_k=20, eos_token_id=None))
        """,
        "print(len(''.join(pieces).split()))",
        """
        from torch.utils.data import Dataset
        from transformers import PrinterCallback, Trainer, TrainingArguments

        class Texts(Dataset):
            def __len__(self):
                return 32

            def __getitem__(self, index):
                tokens = (torch.arange(16) * 3 + index) % 64
                return {"input_ids": tokens, "labels": tokens}

        def train(folder):
            torch.manual_seed(0)
            arguments = TrainingArguments(
                folder, num_train_epochs=2, per_device_train_batch_size=8, dataloader_num_workers=2, report_to=[],
                logging_strategy="no", save_strategy="no", disable_tqdm=True, use_cpu=True, seed=0,
            )
            trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Texts())
            trainer.remove_callback(PrinterCallback)  # prints how long it took
            return round(trainer.train().training_loss, 5), trainer.state.global_step

        print(train("in-a-cell"))
        """,
        """
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            print(pool.submit(train, "in-a-thread").result() == train("in-a-cell"))
        """,
    )
    assert printed == "True\n"


def _asked(url: str, number: int) -> float:
    """Return what the model behind a page says to *number*, by the page's HTTP API."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    call = f"{url}gradio_api/call/infer"
    body = json.dumps({"data": [number]}).encode()
    request = urllib.request.Request(call, body, {"Content-Type": "application/json"})
    with opener.open(request, timeout=100) as reply:
        event = json.load(reply)["event_id"]
    with opener.open(f"{call}/{event}", timeout=100) as reply:
        lines = reply.read().decode().splitlines()
    (data,) = (after for line, after in itertools.pairwise(lines) if line == "event: complete")
    (answer,) = json.loads(data.removeprefix("data: "))
    return float(answer)


@needs("gradio")
async def test_gradio_answers_while_another_user_trains(stack: LocalStack) -> None:
    """Twenty requests at once and no cell; both users get the device, and the training goes on."""
    routes = {user: gateway_route(stack, user) for user in stack.users}
    async with open_notebook(routes["ada"]) as ada, open_notebook(routes["grace"]) as grace:
        for cell in (_OFFLINE, _MODEL, _GRADIO):
            await ada.run(dedent(cell))
        expected = await ada.value("import json\nprint(json.dumps([infer(number) for number in range(20)]))")
        url = await ada.value("print(json.dumps(url))")
        await prepare(grace, "mlp", iteration_seconds=0.02)
        async with grace.endless(ENDLESS):
            await until_under_way(stack, ["grace"])
            before = service_by_user(await read_status(stack))
            with ThreadPoolExecutor(20) as pool:
                loop = asyncio.get_running_loop()
                asked = (loop.run_in_executor(pool, _asked, url, number) for number in range(20))
                assert await asyncio.gather(*asked) == expected
            await until_under_way(stack, ["grace"])
            after = service_by_user(await read_status(stack))
            assert after["ada"] > before["ada"]
        await ada.run("app.close(verbose=False)")


@needs("accelerate")
def test_notebook_launcher(pair: Pair) -> None:
    """Two processes that it forks train together by gloo."""
    printed = pair.check(
        _OFFLINE,
        """
        def train():
            import torch
            from accelerate import Accelerator

            accelerator = Accelerator(cpu=True)
            torch.set_num_threads(1)
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 1)
            model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            inputs = torch.arange(8.0).reshape(2, 4) + accelerator.process_index
            for _ in range(5):
                optimizer.zero_grad()
                accelerator.backward((model(inputs) / 100).square().mean())
                optimizer.step()
            total = accelerator.reduce(torch.ones(1))
            if accelerator.is_main_process:
                with open("result", "w") as file:
                    print(accelerator.num_processes, total.item(), accelerator.unwrap_model(model).weight, file=file)
        """,
        """
        import contextlib, io, socket
        from accelerate import notebook_launcher

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        with contextlib.redirect_stdout(io.StringIO()):
            notebook_launcher(train, num_processes=2, use_port=port, mixed_precision="no")
        """,
        "print(open('result').read())",
    )
    assert printed.startswith("2 2.0 ")
