"""The display of waits in a notebook, and its view of the device."""
