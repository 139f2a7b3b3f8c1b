"""What a notebook shows of the shared device: ``Usage()``, ``Queue()``, ``Lanes()``, and ``Dashboard()``: all three.

They follow the device while a cell runs or waits, and say so on a kernel that is not shared. JSON only: they work
through every gateway and every Jupyter front end that shows ipywidgets; others see the figures of the moment.
``%shared`` prints the same in text (`session/kernel/magics.py`).
"""

from sharedkernel.widgets.live import Dashboard, Lanes, Queue, Usage

__all__ = ["Dashboard", "Lanes", "Queue", "Usage"]
