"""What a notebook can find out about its process: as in a stock kernel, but for what is meant to differ."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from tests.readiness import wait_until_blocking_ready

#: seconds that a kernel may take, on a busy machine
PATIENCE = 60
#: facts that differ, and why
INTENDED = {
    "ast transformers": "the session forecasts how long loops will take",
    "executable": "the user's own packages are in an environment of their own, which programs find, too",
    "environment": "a session has the variables of the host that are for users, none of its clients'",
    "limit DATA": "what the user's quota leaves for private memory",
    "line magics": "%shared",
    "signal SIGURG": "the executor asks for the device by it",
    "path": "the user's own packages go before the shared ones",
    "standard input": "nothing, rather than a pipe that is closed: reading either finds its end",
    "threads": "the meter's and the link's",
    "warning filters": "those of packages that were imported before the fork",
}
#: prints the facts as JSON; each is compared by itself
_FACTS = """
import asyncio, gc, json, locale, logging, multiprocessing.process, os, resource, signal, sys, threading, warnings
from traitlets.config import Application
import rich.console, tqdm.auto, tqdm.autonotebook

shell, app = get_ipython(), Application.instance()
connection_file = app.abs_connection_file
facts = {}

def name(thing):
    return f"{thing.__module__}.{thing.__qualname__}"

for what, thing in {
    "shell": shell, "application": app, "kernel": shell.kernel, "stdout": sys.stdout, "stderr": sys.stderr,
    "display hook": sys.displayhook, "display publisher": shell.display_pub, "stdin": sys.stdin,
    "__stdout__": sys.__stdout__, "history manager": shell.history_manager, "comm manager": shell.kernel.comm_manager,
}.items():
    facts[f"class of {what}"] = name(type(thing))
for hook in ("excepthook", "unraisablehook", "breakpointhook"):
    facts[hook] = name(getattr(sys, hook))
facts |= {
    "configured": sorted(shell.config),
    "arguments": [word.replace(connection_file, "FILE") for word in sys.argv],
    "original arguments": [word.replace(connection_file, "FILE") for word in sys.orig_argv],
    "application's arguments": [word.replace(connection_file, "FILE") for word in app.argv],
    "flags": str(sys.flags), "options": sys._xoptions, "path": sys.path, "warning options": sys.warnoptions,
    "executable": sys.executable, "prefixes": [sys.prefix, sys.base_prefix], "trace": str(sys.gettrace()),
    "recursion limit": sys.getrecursionlimit(), "switch interval": sys.getswitchinterval(),
    "environment": dict(os.environ), "Jupyter's variables": sorted(n for n in os.environ if n.startswith("JPY_")),
    "session name": [os.environ.get("JPY_SESSION_NAME"), globals().get("__session__")],
    "parent": os.environ["JPY_PARENT_PID"] == str(os.getppid()),
    "original directory": multiprocessing.process.ORIGINAL_DIR,
    "process name": multiprocessing.process.current_process().name,
    "start method": multiprocessing.get_start_method(allow_none=True),
    "is a child": multiprocessing.parent_process() is not None,
    "names in main": sorted(n for n in vars(sys.modules["__main__"]) if n not in {"facts", "name"} and n[:2] != "_i"),
    "main": {n: repr(vars(sys.modules["__main__"]).get(n)) for n in ("__name__", "__file__", "__spec__", "__doc__")},
    "is main": vars(sys.modules["__main__"]) is globals(),
    "hidden names": sorted(n for n in shell.user_ns_hidden if n != "__session__"),
    "directories": [os.getcwd(), shell.starting_dir, [str(d) for d in _dh]],
    "masks": [l for l in open("/proc/self/status") if l.startswith(("SigBlk", "SigIgn", "Umask", "NoNewPrivs"))],
    "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding()],
    "standard input": os.readlink("/proc/self/fd/0").partition(":")[0], "input's end": os.read(0, 1).decode(),
    "streams": [[s.name, s.encoding, s.errors, s.isatty(), s.writable()] for s in (sys.stdout, sys.stderr)],
    "terminals": [os.isatty(n) for n in (0, 1, 2)],
    "leads its group": os.getpgid(0) == os.getpid(), "leads its session": os.getsid(0) == os.getpid(),
    "processors": sorted(os.sched_getaffinity(0)), "priority": [os.nice(0), os.sched_getscheduler(0)],
    "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "threads": sorted(t.name for t in threading.enumerate() if "-" in t.name and not t.name.startswith("Thread-")),
    "main thread": threading.current_thread() is threading.main_thread(),
    "warning filters": [str(f) for f in warnings.filters],
    "line magics": sorted(shell.magics_manager.magics["line"]),
    "cell magics": sorted(shell.magics_manager.magics["cell"]),
    "ast transformers": [type(t).__name__ for t in shell.ast_transformers],
    "extensions": sorted(shell.extension_manager.loaded),
    "event hooks": {k: [name(f) for f in v] for k, v in shell.events.callbacks.items()},
    "event loop": [name(type(asyncio.get_running_loop())), asyncio.get_running_loop().get_debug()],
    "logging": [logging.root.manager.disable, logging.raiseExceptions, logging.lastResort.level],
    "tqdm": [name(tqdm.auto.tqdm), [name(c) for c in tqdm.auto.tqdm.__mro__], name(tqdm.autonotebook.tqdm)],
    "rich": rich.console.Console().is_jupyter,
}
for logger in ("", "IPKernelApp", "asyncio", "comm", "ipykernel", "py.warnings", "tornado", "traitlets", "mine"):
    found = logging.getLogger(logger)
    facts[f"logger {logger}"] = [found.level, found.propagate, found.disabled, len(found.handlers)]
for number in signal.valid_signals():
    if isinstance(number, signal.Signals):
        handler = signal.getsignal(number)
        facts[f"signal {number.name}"] = name(handler) if hasattr(handler, "__qualname__") else str(handler)
for limit in dir(resource):
    if limit.startswith("RLIMIT_"):
        facts[f"limit {limit[7:]}"] = resource.getrlimit(getattr(resource, limit))
print(json.dumps(facts))
"""


class Kernel:
    """One that is started in *folder*, as a Jupyter server starts it for a notebook there."""

    def __init__(self, name: str, folder: Path, **variables: str) -> None:
        # What Python is told by its environment is no matter of kernels; sessions have none of it.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self._manager = KernelManager(kernel_name=name)
        self._manager.start_kernel(
            cwd=str(folder), env=env | variables | {"JPY_SESSION_NAME": str(folder / "mine.ipynb")}
        )
        self._client = self._manager.client()
        self._client.start_channels(hb=False)  # a heartbeat that is late on a busy machine is no death
        wait_until_blocking_ready(self._client, PATIENCE)

    def run(self, code: str) -> str:
        """Run a cell; return what it printed."""
        texts = []

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            texts.append(content.get("text") or "\n".join(content.get("traceback", ())))

        self._client.execute_interactive(code, timeout=PATIENCE, output_hook=show)
        return "".join(texts)

    def info(self) -> dict[str, Any]:
        """Return what the kernel says of itself."""
        reply: dict[str, Any] = self._client.kernel_info(reply=True, timeout=PATIENCE)["content"]
        return reply | {"banner": reply["banner"].partition("\nTip: ")[0]}  # which is another one each time

    def restart(self) -> None:
        """Restart it, and wait until it answers."""
        self._manager.restart_kernel()
        wait_until_blocking_ready(self._client, PATIENCE)

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def kernels(tmp_path: Path) -> Any:
    """Yield a stock kernel and a session, both in the test's folder."""
    # A stock kernel inherits what `nohup` has ignored; a session is no child of who asks for it.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    kernels = [Kernel(name, tmp_path) for name in ("python3", "shared-gpu")]
    yield kernels
    for kernel in kernels:
        kernel.close()
    signal.signal(signal.SIGHUP, before)


def test_a_session_looks_like_a_stock_kernel(kernels: list[Kernel]) -> None:
    """Names of classes, arguments, folders, signals, limits and logging differ only where the table says so."""
    stock, session = (json.loads(kernel.run(_FACTS)) for kernel in kernels)
    assert stock.keys() == session.keys()
    different = {fact: (stock[fact], session[fact]) for fact in stock if stock[fact] != session[fact]}
    assert {fact: values for fact, values in different.items() if fact not in INTENDED} == {}
    assert sorted(different) == sorted(INTENDED)
    assert kernels[0].info() == kernels[1].info()


def test_spawned_processes_find_the_notebooks_own_modules(kernels: list[Kernel], tmp_path: Path) -> None:
    """Also when the notebook has gone elsewhere meanwhile."""
    (tmp_path / "helper.py").write_text("def double(number): return 2 * number\n")
    code = (
        "import multiprocessing, os, helper\nos.chdir('/')\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(helper.double, range(3)))"
    )
    assert [kernel.run(code) for kernel in kernels] == ["[0, 2, 4]\n"] * 2


def test_what_a_notebook_logs_reaches_it(kernels: list[Kernel]) -> None:
    """The root logger is its own, whatever else is configured."""
    code = """
import logging, logging.config, warnings
logging.getLogger("first").warning("by the last resort")
print(logging.root.handlers, logging.getLogger("mine").getEffectiveLevel())
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
logging.getLogger("mine").info("by the root")
logging.captureWarnings(True)
warnings.warn_explicit("captured", UserWarning, "cell", 1)
logging.config.dictConfig({"version": 1, "handlers": {"c": {"class": "logging.StreamHandler"}},
                           "root": {"handlers": ["c"], "level": "DEBUG"}})
logging.getLogger("other").debug("by the new root")
"""
    # What is printed and what is logged come in any order.
    stock, session = (sorted(kernel.run(code).splitlines()) for kernel in kernels)
    assert {"by the last resort", "[] 30", "INFO mine by the root", "by the new root"} <= set(stock)
    assert session == stock


def test_variables_that_torch_reads_are_given_to_the_kernel(tmp_path: Path) -> None:
    """A kernelspec's, or a Jupyter server's; also after a restart. Otherwise the session is as any other."""
    kernel = Kernel("shared-gpu", tmp_path, KERNEL_ENV_PYTORCH_JIT="0")
    try:
        for is_restarted in (False, True):
            if is_restarted:
                kernel.restart()
            facts = json.loads(kernel.run(_FACTS))
            assert facts["environment"]["PYTORCH_JIT"] == "0"
            assert kernel.run("import torch; print(torch.jit._state._enabled.enabled)") == "False\n"
            assert kernel.run("print(torch.ones(3).sum().item(), flush=True)") == "3.0\n"
            assert facts["arguments"][1:] == ["-f", "FILE"]
            assert facts["directories"][0] == str(tmp_path)
            assert facts["class of shell"] == "ipykernel.zmqshell.ZMQInteractiveShell"
    finally:
        kernel.close()
