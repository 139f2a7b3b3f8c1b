"""Sessions as Jupyter's server sees kernels: their registry, start, end and recovery."""
