"""Who is served first: the policies, what they rank by, and how all are found (`registry.py`)."""
