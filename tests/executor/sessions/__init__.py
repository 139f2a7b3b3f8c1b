"""Tests of sessions from start to end."""
