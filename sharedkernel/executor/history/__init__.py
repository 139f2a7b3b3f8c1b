"""The records of an executor: its events, who ran when, and how long notebooks took."""
