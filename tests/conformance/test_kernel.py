"""Jupyter's own conformance tests, on the kernel that `sharedkernel install` adds."""

from __future__ import annotations

from typing import ClassVar

import jupyter_kernel_test


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
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


class TestSubscribing(jupyter_kernel_test.IopubWelcomeTests):
    """A new subscriber of the outputs is greeted."""

    kernel_name = "shared-gpu"
    support_iopub_welcome = True
