"""What sharing costs and what it gives, measured beside the stock tools: `sharedkernel bench`.

Every figure comes from real notebooks on real servers: :mod:`.servers` and :mod:`.client` are the ground, and there is
one module per benchmark. A figure with a peer is a ratio of the two, taken in one run in alternating pairs, since
machines differ and are never quiet.
"""
