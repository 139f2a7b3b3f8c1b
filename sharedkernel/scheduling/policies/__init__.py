"""Who is served first: the policies, what they rank by, and how to add one (`registry.py`)."""
