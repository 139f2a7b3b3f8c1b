"""Sockets, descriptors and pages that two of our processes share."""
