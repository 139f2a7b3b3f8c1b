"""The steps from an event to actions: handle the event, reconcile all records, apply what is decided."""
