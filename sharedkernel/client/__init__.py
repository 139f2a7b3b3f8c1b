"""The user's machine: whatever reaches a gateway from there.

`gateway/` is the one client of a gateway; `relay/` is the kernel that Jupyter starts, which passes one kernel's
messages on, across outages; and `extension/` is in Jupyter's server. The commands are in `cli/`.
"""
