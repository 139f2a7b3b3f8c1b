"""The status document as text and tables."""
