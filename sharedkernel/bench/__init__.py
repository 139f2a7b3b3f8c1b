"""What sharing costs and what it gives, measured beside the stock tools: `sharedkernel bench`.

Every figure comes from real notebooks on real servers: :mod:`.stack` has what they stand on; each benchmark is a module
of the checkout's `benchmarks`. A figure with a peer is a ratio of the two, taken in one run in alternating pairs, since
machines differ and are never quiet.
"""
