"""The kinds of device that an executor can serve."""
