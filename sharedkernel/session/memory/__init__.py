"""What a session uses of its device, and how much more it may take."""
