"""The calls that lanes need of a driver, and CUDA's."""
