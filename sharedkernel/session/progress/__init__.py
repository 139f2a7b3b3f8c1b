"""The progress of a cell, and what is left of it."""
