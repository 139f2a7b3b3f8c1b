"""The gate: acquires the device before the first operation, and releases it at an iteration boundary."""
