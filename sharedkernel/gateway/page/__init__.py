"""The gateway's own page: who uses what, live, and what a user can do about it.

`handlers.py` serves it and signs people in, with a token or a hub, on the pages of `page_handler.py`. `figures.py`
sends it the status, `history.py` keeps the last hour, `timeline.py` asks executors what sessions did in it,
`room_requests.py` asks for idle memory, `audit_tail.py` reads the end of the audit log. What runs in the browser is
built from `labextension/src/page/` into `static/`.
"""
