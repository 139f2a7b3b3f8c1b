"""Tests of what is between sessions and the scheduling core."""
