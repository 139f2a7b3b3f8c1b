"""Jupyter's own conformance tests, on the kernel that `sharedkernel install` adds, and papermill.

A stock Jupyter server with `--gateway-url` is in `tests/gateway/test_stock_clients.py`, JupyterLab in `tests/browser`;
nbclient by itself and the console, with interrupts and ends, in `tests/client/relay/test_clients.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import jupyter_kernel_test
import nbformat
import papermill
from jupyter_kernel_test.msgspec_v5 import validate_message

#: seconds that a message may take, on a busy machine
PATIENCE = 60.0


class TestSharedKernel(jupyter_kernel_test.KernelTests):
    """What every kernel does, and what an IPython kernel does besides."""

    kernel_name = "shared-gpu"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('careful', file=sys.stderr)"
    completion_samples: ClassVar = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "import sharedker", "matches": {"sharedkernel"}},
    ]
    complete_code_samples: ClassVar = ["1", "print('hello, world')", "def f(x):\n  return x * 2\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x * 2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise ValueError('no')"
    code_execute_result: ClassVar = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n * n for n in range(1, 4)]", "result": "[1, 4, 9]"},
        {"code": "import torch; torch.arange(3).sum().item()", "result": "3"},
    ]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))", "mime": "text/latex"},
    ]
    #: the first of them as it is: the history is that of the account, which may have run anything before
    code_history_pattern = "1?2?3"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    @classmethod
    def setUpClass(cls) -> None:
        """Wait longer than these tests do by themselves: a tenth of a second from one published message to the next."""
        super().setUpClass()
        hear = cls.kc.iopub_channel.get_msg
        cls.kc.iopub_channel.get_msg = lambda timeout=None: hear(timeout=PATIENCE)

    def flush_channels(self) -> None:
        """Read what earlier requests have left, up to the end of one that is made now: a pause does not say so."""
        asked = self.kc.kernel_info()
        for channel, last in ((self.kc.shell_channel, "kernel_info_reply"), (self.kc.iopub_channel, "idle")):
            found = None
            while found != (asked, last):
                message = channel.get_msg(timeout=PATIENCE)
                validate_message(message)
                kind = message["content"].get("execution_state", message["msg_type"])
                found = (message["parent_header"].get("msg_id"), kind)


class TestSubscribing(jupyter_kernel_test.IopubWelcomeTests):
    """A new subscriber of the outputs is greeted."""

    kernel_name = "shared-gpu"
    support_iopub_welcome = True


def test_papermill(tmp_path: Path) -> None:
    """A parameter reaches the session, and its result the other file, of a notebook that names its author's kernel."""
    parameters = nbformat.v4.new_code_cell("steps = 1", metadata={"tags": ["parameters"]})
    cells = [parameters, nbformat.v4.new_code_cell("import torch; torch.full((4,), steps).sum().item()")]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    before, after = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), before)
    papermill.execute_notebook(before, after, parameters={"steps": 2}, kernel_name="shared-gpu", progress_bar=False)
    assert nbformat.read(after, as_version=4).cells[-1].outputs[-1].data["text/plain"] == "8"
