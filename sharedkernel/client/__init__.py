"""The user's machine: whatever reaches a gateway from there.

`gateway/` is the one client of a gateway; `forwarder/` passes one kernel's messages on, across outages; `relay/` is the
kernel that Jupyter starts, and `extension/` is in Jupyter's server. The commands are in `cli/`.
"""
