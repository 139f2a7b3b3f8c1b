"""What people run: status, top, lab and demo. `base.py` is their common ground, `tables.py` what they show."""
