"""The scheduling core under simulated time: traces in, figures out; see `cluster.py`, `device.py`, `notebooks.py`.

It is the second driver of `sharedkernel.scheduling`, beside the executor. Nothing here imports torch or touches a
device, and nothing there knows that it is simulated.
"""
