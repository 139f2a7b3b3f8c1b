"""Named tensors that outlive their kernel.

::

    from sharedkernel import shelf

    shelf["model"] = model.state_dict()
    model.load_state_dict(shelf["model"])

What is on a shelf stays there when the kernel is restarted, crashes or is shut down, when the services around it are
restarted, and when the machine is. It goes when it is deleted (``del shelf["model"]``).

- A user has one shelf, and all of that user's kernels see the same one. Nobody else sees it.
- A value is a tensor, or dicts, lists and tuples of tensors and plain things (numbers, text, bytes, None). Tensors that
  share memory within one value share it again; parameters come back as plain tensors, detached.
- ``shelf[name]`` copies nothing. The tensors *are* what is on the shelf: what is written into them is on the shelf,
  seen by every kernel that reads the name, and still there after a crash. They lie on the CPU, wherever they came from;
  ``load_state_dict`` copies them to where the model is. For tensors of their own, on the device where they were, there
  is ``shelf.copy(name)``.
- To assign a name anew replaces it as a whole: who read it before keeps the old memory.
- The shelf counts to its user's quota, and so does what was taken off it for as long as a kernel still uses it.

This package is the notebook's side. What the executor does is in :mod:`sharedkernel.executor.shelf.store`. Importing it
is cheap and needs no torch, so that any process may do so.
"""

from __future__ import annotations

from sharedkernel.shelf.mapping import Shelf

__all__ = ["Shelf", "shelf"]

#: the shelf of the user whose notebook this is
shelf = Shelf()
