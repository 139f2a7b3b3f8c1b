"""The calls that lanes need of a driver: CUDA's, and the same on plain Linux memory."""
