"""The scheduler's knowledge: configuration, records, and the events and actions that pass through its door."""
