"""One client's messages to its session behind a gateway and back, across outages.

What `relay/relay.py` decides with: `connection.py` has the websocket, `held.py` what waits for it, `pending.py` what
waits for a reply; `outage.py` and `local_responder.py` speak to the client while no session does. The gateway's end of
the websocket is `gateway/channels/websocket.py`.
"""
