"""Jupyter's own conformance tests, on the kernel that `sharedkernel install` adds."""

from __future__ import annotations

from typing import ClassVar

import jupyter_kernel_test
import pytest
from jupyter_kernel_test.msgspec_v5 import validate_message

from tests.conformance.conftest import FRONT_ENVIRONMENT

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


@pytest.mark.heavy
@pytest.mark.usefixtures("front_environment")
class TestThroughFront(TestSharedKernel):
    """The same through a front of a cluster, which users are not to notice."""

    @classmethod
    def setUpClass(cls) -> None:
        """Start the client with the front for its gateway."""
        assert FRONT_ENVIRONMENT
        patch = pytest.MonkeyPatch()
        cls.addClassCleanup(patch.undo)
        for name, value in FRONT_ENVIRONMENT.items():
            patch.setenv(name, value)
        super().setUpClass()


class TestSubscribing(jupyter_kernel_test.IopubWelcomeTests):
    """A new subscriber of the outputs is greeted."""

    kernel_name = "shared-gpu"
    support_iopub_welcome = True
