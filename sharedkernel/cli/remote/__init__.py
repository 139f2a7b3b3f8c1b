"""Commands that bring what is on the host to this machine: files and ports."""
