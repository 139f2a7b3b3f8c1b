"""The extension in a real Jupyter server, with a real gateway and executor behind it."""
