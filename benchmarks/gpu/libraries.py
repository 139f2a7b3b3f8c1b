"""What notebooks use of torch and of libraries on it: in a session it gives what it gives in a stock kernel.

bf16 autocast, `torch.compile`, a captured graph, and `generate` of a small transformer with random weights: that of the
package transformers where it is installed, else one of the notebook's own.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass

from common import Bench, main, processes, sessions

from benchmarks.stack.client import Notebook
from benchmarks.stack.results import Result, Target, brief
from benchmarks.stack.servers import StockServer

#: each computes some numbers
_AUTOCAST = """
training = Training("gpt", 8)
def compute():
    training.optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(training.model(training.inputs).float(), training.labels)
    loss.backward()
    training.optimizer.step()
    return [loss.item()]
"""
_COMPILE = """
training = Training("mlp", 64)
training.model = torch.compile(training.model)
def compute():
    return [training.iterate().item()]
"""
_GRAPH = """
model, inputs = models["mlp"][0]().to(device).eval(), torch.randn(64, 512).to(device)
with torch.no_grad():
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            model(inputs)
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = model(inputs)
def compute():
    inputs.mul_(0.5)
    graph.replay()
    return [outputs.sum().item(), outputs.square().mean().item()]
"""
_GENERATE = """
try:
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError:
    model = models["gpt"][0]().to(device).eval()
    @torch.no_grad()
    def generate(tokens, count):
        for _ in range(count):
            tokens = torch.cat([tokens, model(tokens.flip(1)).argmax(-1, keepdim=True)], 1)
        return tokens
else:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=300, pad_token_id=0, eos_token_id=None)
    model = GPT2LMHeadModel(config).to(device).eval()
    def generate(tokens, count):
        return model.generate(tokens, max_new_tokens=count, do_sample=False)
prompt = torch.arange(8, device=device)[None]
def compute():
    return generate(prompt, 16)[0].tolist()
"""
_RUN = """
torch.manual_seed(5)
{define}
begun = time.perf_counter()
found = compute()
torch.cuda.synchronize()
first = time.perf_counter() - begun
for _ in range(4):
    begun = time.perf_counter()
    found += compute()
    last = time.perf_counter() - begun
print(json.dumps([found, first, last]))
"""
_CLEAN = "del compute\ngc.collect()\ntorch.cuda.empty_cache()"
#: what each is, whether the software GPU computes it, and how far figures may differ: sums have no fixed order
_TRIED = {
    "autocast": (_AUTOCAST, True, 1e-2),
    "captured_graph": (_GRAPH, False, 1e-4),
    "generate": (_GENERATE, True, 0.0),
    "compile": (_COMPILE, False, 1e-4),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What a notebook printed, and how long it took the first and the last time."""

    found: list[float]
    first_seconds: float
    last_seconds: float

    def __str__(self) -> str:
        return f"{brief(self.first_seconds)}, {brief(self.last_seconds)}"


async def measure(bench: Bench) -> None:
    """Run the same cells in a session and in a stock kernel, and compare the figures that they print."""
    with bench.stack() as stack, StockServer() as server:
        async with AsyncExitStack() as contexts:
            shared, stock = await bench.open(contexts, [*sessions(stack), *processes(server, 1)])
            for name, (define, is_computed, tolerance) in _TRIED.items():
                if bench.software and not is_computed:
                    bench.skip(name, "not computed on the software GPU")
                    continue
                bench.say(name)
                here, there = [await _run(notebook, define) for notebook in (shared, stock)]
                if isinstance(there, str):
                    bench.skip(name, f"a stock kernel cannot do it here: {there}")
                else:
                    bench.add(_compare(name, here, there, tolerance), exact=True)


def _compare(name: str, here: Run | str, there: Run, tolerance: float) -> Result:
    if isinstance(here, str):
        difference, how = 1.0, f"It fails in a session alone: {here}"
    else:
        pairs = zip(here.found, there.found, strict=True)
        difference = max(abs(one - other) / max(abs(other), 1e-9) for one, other in pairs)
        how = f"Largest difference of {len(here.found)} figures. First and last run: {here} in a session, {there} in a "
        how += "stock kernel."
    return Result(metric=name, value=difference, unit="ratio", target=Target("<=", tolerance), how=how)


async def _run(notebook: Notebook, define: str) -> Run | str:
    """Return what a notebook printed, or its error."""
    reply = await notebook.execute(_RUN.format(define=define))
    if reply.error is not None:
        return reply.error
    await notebook.run(_CLEAN)
    return Run(*json.loads(reply.text.splitlines()[-1]))


if __name__ == "__main__":
    main("libraries", measure)
