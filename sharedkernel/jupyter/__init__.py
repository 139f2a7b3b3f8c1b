"""Jupyter's messages as bytes on sockets."""
