"""The HTTP server: routes, guards of requests, health and metrics."""
