"""What Jupyter's sockets carry: messages as bytes, and the names of kernels and headers."""
