"""The policies: who is served first, what they rank by, and how all are found (`registry.py`)."""
