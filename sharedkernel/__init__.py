"""One GPU, many notebooks: see README.md."""
