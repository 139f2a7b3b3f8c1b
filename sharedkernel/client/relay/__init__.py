"""The kernel that a notebook client starts: it passes everything to a gateway.

`start.py` listens for the client, `command.py` and `app.py` start the rest in the order that is fastest; see
`docs/decisions/2026-11-24-relay-start.md`. `relay.py` decides what happens to each message, between the client's side,
`sockets.py` (zmq), and the gateway's, `client/forwarder/` (a websocket).
`kernelspec.py` is what Jupyter finds.

What is imported here decides how fast a notebook's kernel starts and what each costs: nothing but the standard library,
zmq and `websockets`, and no more of them than needed.
"""
