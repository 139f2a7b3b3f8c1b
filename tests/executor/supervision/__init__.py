"""Tests of the processes beside the executor."""
