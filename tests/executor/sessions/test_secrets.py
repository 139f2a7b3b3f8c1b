"""Sessions that are forked, and such as start afresh, with variables which are read when torch is imported.

A fork shares no secret, seed or name that sessions which start afresh would have each of their own.
"""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.executor.harness import PATIENCE, Executor, ExecutorProcess, Notebook

pytestmark = pytest.mark.heavy

#: prints the digest of every value that a module, or something in one, holds: numbers, texts, bytes, generators' states
_WALK = r"""
import gc, hashlib, json, random, sys, types
import numpy, torch
from multiprocessing import process as _process
_found, _seen = {}, set()
def _digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
def _walk(name, value, depth):
    if isinstance(value, (bool, type(None), type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
        return
    if isinstance(value, (bytes, bytearray, str, int, float)):
        _found[name] = _digest(value)
    elif isinstance(value, random.SystemRandom):
        return
    elif isinstance(value, random.Random):
        _found[name] = _digest(value.getstate())
    elif isinstance(value, numpy.random.RandomState):
        _found[name] = _digest(str(value.get_state(legacy=False)))
    elif isinstance(value, numpy.random.Generator):
        _found[name] = _digest(str(value.bit_generator.state))
    elif isinstance(value, torch.Generator):
        _found[name] = _digest(bytes(value.get_state().tolist()))
    elif depth and id(value) not in _seen:
        _seen.add(id(value))
        if isinstance(value, dict):
            inside = [(str(key), each) for key, each in list(value.items())[:200] if isinstance(key, (str, int))]
        elif isinstance(value, (list, tuple)):
            inside = [(str(place), each) for place, each in enumerate(value[:200])]
        else:
            inside = list(getattr(value, "__dict__", {}).items())
        for key, each in inside:
            _walk(f"{name}.{key}", each, depth - 1)
for _name, _module in sorted(sys.modules.items()):
    if _name != "__main__" and isinstance(_module, types.ModuleType):
        for _key, _value in list(vars(_module).items()):
            if not _key.startswith("__"):
                _walk(f"{_name}.{_key}", _value, 3)
_walk("authkey", _process.current_process().authkey, 1)
print(json.dumps(_found))
"""
#: no secrets: addresses and the order of sets, which follow from the layout of memory and the hash seed that a fork
#: shares (docs/security.md), when and by whom something was imported, bytes measured at a start, how many messages were
#: sent, and a key that only must be no word of a user's
_HARMLESS = re.compile(
    r"(_?ctypes\..*|.*\._libc\._handle|.*\._main|.*\._thread_id|torch\._C\..*|tokenize\..*|torch\.masked\..*"
    r"|torch\._dynamo\.variables\..*|_strptime\._TimeRE_cache\..*"
    r"|.*\.session\.message_count|.*\._fi?d|.*\._original_stdstream_copy|.*\._last_log_time|.*\.timestamp_zero"
    r"|.*\._meter\._baseline|logging\._startTime"
    r"|.*\.pydevd_schema_log\._pid(_msg)?"
    r"|torch\.distributed\._composable\.contract\.\w+_KEY)"
)


_ASKED = {"KERNEL_ENV_PYTORCH_JIT": "0", "KERNEL_ENV_MINE": "a b"}
#: whether torch has read the variable
_LOOK = "import os, torch; os.environ['MINE'], torch.jit._state._enabled.enabled"


async def test_forked_sessions_and_such_as_start_afresh(process: ExecutorProcess) -> None:
    async with Executor(process) as executor:
        one, other = await executor.notebooks("ada", "ada")
        first, second = await executor.notebooks("ada", "ada", env=_ASKED)
        await _share_nothing_that_each_should_have_alone(one, other, first, second)
        assert (await one.run("import torch; torch.jit._state._enabled.enabled")).text == "True"
        await _is_a_session_like_any_other(executor, first)


async def _share_nothing_that_each_should_have_alone(*notebooks: Notebook) -> None:
    """Fail for a value that two forked sessions have alike, and that differs between two that started afresh."""
    found = []
    for outcome in await asyncio.gather(*(notebook.run(_WALK) for notebook in notebooks)):
        # a library's warnings are printed, too
        found.append(json.loads(next(line for line in outcome.text.splitlines() if line.startswith("{"))))
    one, other, first, second = found
    assert len(one) > 10_000
    assert one["authkey"] != other["authkey"]
    shared = sorted(
        name
        for name, value in one.items()
        if other.get(name) == value and name in first and name in second and first[name] != second[name]
    )
    assert [name for name in shared if not _HARMLESS.fullmatch(name)] == []


async def _is_a_session_like_any_other(executor: Executor, notebook: Notebook) -> None:
    """Fail unless one that started afresh is measured, granted the device, restored, adopted, and its end told."""
    assert (await notebook.run(_LOOK)).text == "('a b', False)"
    assert (await notebook.run("kept = torch.arange(4 << 20); print('seen')")).text == "seen\n"
    assert (await notebook.run("!echo out")).text.strip() == "out"
    entry = await executor.session(notebook)
    assert entry["persistent_bytes"] >= 32 << 20
    assert entry["attained_service_seconds"] > 0
    await executor.client.offload_session(notebook.session)
    assert (await executor.session(notebook))["state"] == "offloaded"
    await executor.replace()
    assert (await notebook.run("int(kept[-1])")).text == str((4 << 20) - 1)
    died = executor.told_of_end()  # by the warm parent, whose child it is as any other
    notebook.client.execute("import os; os._exit(3)")
    assert "code 3" in await asyncio.wait_for(died, PATIENCE)
