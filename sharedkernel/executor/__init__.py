"""The service that owns one device: sessions, grants, memory. See `service.py`."""
