"""Who is served first: the policies, and the service and predictions they rank by.

To add one, subclass `base.Policy` in `builtin.py` or `by_service.py`, add it to `POLICIES` in `builtin.py` and name it
in `PolicyName` (`scheduling/model/config.py`). "Add a policy" in CONTRIBUTING.md has the texts and tests that follow.
"""
