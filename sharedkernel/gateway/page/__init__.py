"""The gateway's own page: who uses what, live, and what a user can do about it.

`handlers.py` serves it, signs people in, with a token or a hub, and sends it the status. `history.py` keeps the last
hour and asks executors what sessions did in it, `room_requests.py` asks for idle memory, `audit_tail.py` reads the end
of the audit log. What runs in the browser is built from `labextension/src/page/` into `static/`.
"""
