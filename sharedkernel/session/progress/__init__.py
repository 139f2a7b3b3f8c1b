"""How far a cell has come, and what is left of it."""
