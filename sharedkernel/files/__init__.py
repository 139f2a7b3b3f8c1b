"""A user's own Jupyter server on a host: stock contents and terminals, and uploads that can be resumed."""
