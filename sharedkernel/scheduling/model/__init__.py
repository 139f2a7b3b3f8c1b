"""What the scheduler knows: configuration, records, and the events and actions that pass through its door."""
