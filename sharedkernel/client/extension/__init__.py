"""The shared device as the user's own Jupyter server passes it on to its pages.

A page must not hold the token of a gateway, and a gateway lets no page of another site in. So this extension stands
between: `upstream.py` speaks to the gateway as the user, `follower.py` follows what happens there for all open pages
at once, and knows which of this server's kernels is which session there, `recorder.py` keeps what their cells have
shown for pages that are reloaded, `user_server.py` reaches the user's files and terminals there, `handlers.py` has the
other routes.

It works with the kernelspec that `sharedkernel install` writes and with ``jupyter lab --gateway-url``; where neither
is set up it says so and waits. What the pages make of it is in `labextension/`.
"""
