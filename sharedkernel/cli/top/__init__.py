"""The command ``sharedkernel top``."""
