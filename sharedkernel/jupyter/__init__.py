"""Jupyter's wire: messages as bytes, and the names of kernels and headers."""
