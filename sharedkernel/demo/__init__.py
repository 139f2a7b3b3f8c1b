"""What `sharedkernel demo` is made of: the notebooks at once (`runs.py`), the figures (`report.py`), the tables."""
