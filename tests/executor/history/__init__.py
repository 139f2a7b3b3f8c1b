"""Tests of what is written down."""
