"""Notice that one of torch's function transforms (`torch.func.vmap`, `jacfwd`, `grad`, …) is under way.

While an operation passes the levels of transforms, torch sets this thread's dispatch keys aside and puts them back
afterwards. A mode that came or went meanwhile would leave keys behind that no mode belongs to, or the other way round:
torch then fails with "Hit Python dispatch key but no arguments had PyInterpreter". The levels themselves do not tell:
torch takes the topmost off while it works on the others.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch

_TORCH = os.path.dirname(torch.__file__)
#: transforms run the user's function from these files
_PLACES = (os.path.join(_TORCH, "_functorch", ""), os.path.join(_TORCH, "_vmap_internals.py"))


def is_transform_under_way() -> bool:
    """Return whether the calling thread is inside a function transform: a microsecond for a few dozen frames."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PLACES):
            return True
        frame = frame.f_back
    return False
