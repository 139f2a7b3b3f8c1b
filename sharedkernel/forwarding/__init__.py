"""One client's messages to its session behind a gateway and back, across outages.

`forwarder.py` decides what happens to a message; `connection.py` has the websocket, `held.py` what waits for it,
`outage.py` and `local_responder.py` speak to the client while no session does. The relay and the Jupyter server's
extension are its users. The gateway's end of the websocket is `gateway/channels/websocket.py`.
"""
