"""Many people at once: ``python -m benchmarks.load``.

Two hundred notebooks of fifty users on the host device, a fifth of them busy at a time, and beside them a stock Jupyter
server with as many idle kernels. Every cell's result is known beforehand and checked. ``--minutes 20`` keeps the crowd
at work for that long, closes and opens notebooks meanwhile, and says what the services grow by.

- `crowd.py`: the notebooks, their cells and what these must give
- `footprint.py`: memory and descriptors of processes, and how they grow
- `lag.py`: how long the gateway takes to answer the simplest question, asked from outside
"""
