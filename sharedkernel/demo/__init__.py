"""The parts of `sharedkernel demo`: the notebooks at once (`runs.py`), the figures (`report.py`), the tables."""
