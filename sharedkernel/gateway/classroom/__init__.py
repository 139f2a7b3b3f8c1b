"""A class: users for some hours, with quotas, invitations and tokens that end together.

`record.py` is what is kept of it in a file, `classroom.py` begins and ends it, `handlers.py` has an admin's requests,
`invitations.py` the page that an invitation opens.
"""
