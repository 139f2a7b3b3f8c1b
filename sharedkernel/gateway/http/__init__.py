"""The HTTP server: routes, errors, encryption, health and metrics."""
