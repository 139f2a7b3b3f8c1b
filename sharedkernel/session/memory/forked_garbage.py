"""Keep a forked child from freeing the device memory of the session that it was forked from.

CUDA does not work in a forked child, such as a worker of a DataLoader. What torch frees there by destructors that may
not fail (an event, a tensor that another stream used, a pool, pinned memory) therefore ends the child. An object that
is garbage only for the collector of cycles, such as what an exception's traceback refers to, is freed in whichever
process collects it first: now and then in the child, which then dies for no reason that its user could see.
"""

from __future__ import annotations

import gc
import os


def leave_garbage_to_parent() -> None:
    """From now on, let no child that is forked collect what was made before the fork.

    A child shares that memory with its parent until one of them writes to it, so it does not need more.
    """
    was_enabled = False

    def before() -> None:
        nonlocal was_enabled
        was_enabled = gc.isenabled()
        gc.disable()  # other handlers run in the child before this one

    def after_in_parent() -> None:
        if was_enabled:
            gc.enable()

    def after_in_child() -> None:
        gc.freeze()
        after_in_parent()

    os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)
