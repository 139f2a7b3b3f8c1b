"""Torch's memory pools over a session's arena: callbacks, segments, and the generations that follow each other."""
