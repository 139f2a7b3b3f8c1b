"""The user's process: the kernel (`kernel/app.py`), and the gate between its code and the device (`gate/gate.py`)."""
