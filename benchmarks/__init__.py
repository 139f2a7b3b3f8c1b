"""What was measured, each figure by a command of its own."""
