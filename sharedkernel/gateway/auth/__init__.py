"""Authentication and authorization: identities, tokens, rate limits and the audit log.

`identity.py` checks each request's token (`TokenOnlyIdentity.find_user`, for the request guard and for Jupyter's
handlers), and `hub.py` asks JupyterHub instead. `http/websocket_registry.py` checks the tokens of open
websockets again.
"""
