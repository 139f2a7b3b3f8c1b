"""The operating system: signals, processes, files, memory, and NVIDIA's management library."""
