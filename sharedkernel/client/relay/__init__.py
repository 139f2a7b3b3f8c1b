"""The kernel that a notebook client starts: it passes everything to a gateway.

`start.py` listens for the client, `app.py` starts the rest in the order that is fastest; see
`docs/decisions/2026-11-24-relay-start.md`. `relay.py` decides what happens to each message, between the client's side,
`sockets.py` (zmq), and the gateway's, `session_connection.py` (a websocket, whose other end is
`gateway/channels/websocket.py`). `pending.py` has what waits for either, and `local_responder.py` speaks to the client
while no session does. `client/connect.py` writes the kernelspec, which is what Jupyter finds.

What is imported here decides how fast a notebook's kernel starts and what each costs: nothing but the standard library,
zmq and `websockets`, and no more of them than needed.
"""
