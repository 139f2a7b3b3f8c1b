"""Messages between a client and its session, in the gateway.

`websocket.py` has the client's end, `outputs.py` what the session publishes; the others bound what waits, and bring
back what a client missed.
"""
