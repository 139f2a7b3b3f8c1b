"""The scheduling core: pure decisions about one device. Events in, actions out; see `scheduler.py`."""
