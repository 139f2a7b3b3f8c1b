"""The `sharedkernel` command. Each sub-command is thin; `base.py` is their common ground."""
