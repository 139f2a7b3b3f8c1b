"""The control socket: who connects, what they ask, and the status that they are sent."""
