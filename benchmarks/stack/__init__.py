"""What benchmarks stand on: servers, a client, trainings, results and their report.

Every figure comes from real notebooks on real servers. A figure with a peer is a ratio of the two, taken in one run in
alternating pairs, since machines differ and are never quiet.
"""
