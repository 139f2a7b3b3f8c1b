"""Tests of the handle on a session's process."""
