"""What a notebook shows of the shared device: ``Usage()``, ``Queue()``, ``Lanes()``, and ``Dashboard()``: all three.

They follow the device while a cell runs or waits, and say so on a kernel that is not shared. A JupyterLab with this
project's extension draws them as its panel, from the panel's figures. JSON only: they work through every gateway and
every other Jupyter front end that shows ipywidgets; the rest see the figures of the moment.
``%shared`` prints the same in text (`session/kernel/magics.py`).
"""

from sharedkernel.widgets.live import Dashboard, Lanes, Queue, Usage

__all__ = ["Dashboard", "Lanes", "Queue", "Usage"]
