"""Widgets of the shared device in a notebook: ``Usage()``, ``Queue()``, ``Lanes()``, and ``Dashboard()``: all three.

They follow the device while a cell runs or waits, and say so on a kernel that is not shared. A JupyterLab with this
project's extension draws them as its panel, from the panel's figures. All others see text, the same that ``%shared``
prints (`session/kernel/shell.py`): live where ipywidgets are shown, else the figures of the moment. JSON only: they
work through every gateway.
"""

from sharedkernel.widgets.live import Dashboard, Lanes, Queue, Usage

__all__ = ["Dashboard", "Lanes", "Queue", "Usage"]
