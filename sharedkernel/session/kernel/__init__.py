"""The kernel of a session: an ordinary ipykernel, and what it needs to serve one user."""
