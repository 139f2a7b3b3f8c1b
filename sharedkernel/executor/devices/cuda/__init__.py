"""One NVIDIA GPU: found, described, watched, and given back."""
