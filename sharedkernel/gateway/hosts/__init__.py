"""Several hosts behind one address: a front gateway forwards its users' requests to the hosts that registered there.

On a host, `registration.py` sends the summary of `summary.py` to each front. On a front, `registry.py` has the hosts
and merges their status, `front.py` decides which one gets a request, `handlers.py` and `requests.py` forward it,
`http/splice.py` joins websockets. `requests.py` also has quotas and policy applied everywhere.

A gateway that is in no cluster imports nothing of this.
"""
