"""What runs inside a user's process. See `kernel.py`."""
