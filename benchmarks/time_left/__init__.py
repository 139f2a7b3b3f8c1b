"""How often the time that a long cell has left is told, and how often that is near: before, and now."""
