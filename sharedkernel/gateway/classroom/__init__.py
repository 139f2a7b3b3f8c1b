"""Classes: groups of users for some hours, with limits, invitations and tokens that end together.

`classes.py` begins and ends them, `sessions.py` finds and ends what is theirs, `handlers.py` has an admin's requests
and the page that an invitation opens. Not here: the file of classes (`config/classes.py`) and their limits.
"""
