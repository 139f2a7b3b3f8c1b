"""The shelf's memory: stored by name, charged to users, and kept when kernels end."""
