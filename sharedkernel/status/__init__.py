"""The status document: its parts, and how it reads as text and in tables."""
