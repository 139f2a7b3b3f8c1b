"""The gate: the device is acquired before the first operation, and given back at an iteration's boundary."""
