"""What a notebook shows about its waits, and what it can see of the device."""
