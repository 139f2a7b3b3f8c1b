"""What a notebook shows of the shared device: ``Usage()`` and ``Queue()``.

They follow the device while a cell runs or waits, and say so on a kernel that is not shared. JSON only: they work
through every gateway and every Jupyter front end that shows ipywidgets; others see the figures of the moment.
"""

from sharedkernel.widgets.live import Queue, Usage

__all__ = ["Queue", "Usage"]
