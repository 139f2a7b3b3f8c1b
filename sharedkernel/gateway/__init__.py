"""The HTTP side: who are you, what may you use, your kernels. See `app.py`."""
