"""Whether the figures of memory are true, as seen from outside, and a quota is all usable."""
