"""Whole notebooks on a stock kernel and on Shared GPU, and where their outputs differ."""
