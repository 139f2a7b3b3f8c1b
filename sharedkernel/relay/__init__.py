"""The kernel that a notebook client starts: it passes everything to a gateway.

`app.py` joins the two sides: `sockets.py` is the client's (zmq), `gateway_client/` the gateway's (HTTP, a websocket).
`jupyter/wire.py` frames messages for both. `local_responder.py` answers the client while no session does. `install.py`
puts the kernelspec in its place.

What is imported here decides how fast a notebook's kernel starts and what each costs: nothing but the standard
library, zmq and tornado, and no more of them than needed.
"""
