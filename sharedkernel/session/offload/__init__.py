"""Moving a session's tensors off its device and back, and when."""
