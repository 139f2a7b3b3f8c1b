"""The kernel that a notebook client starts: it passes everything to a gateway. See `app.py`."""
