"""A session's use of its device's memory, and how much more it may take."""
