"""What an executor writes down: its events, who ran when, and how long notebooks took."""
