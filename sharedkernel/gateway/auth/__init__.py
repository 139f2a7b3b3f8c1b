"""Who asks and what they may do: identities, tokens, rate limits and the audit log.

`identity.py` checks each request's token (`TokenOnlyIdentity._get_user`, which Jupyter's server calls whenever a
handler needs a user), and `hub.py` asks JupyterHub instead. `http/websocket_registry.py` checks the tokens of open
websockets again.
"""
