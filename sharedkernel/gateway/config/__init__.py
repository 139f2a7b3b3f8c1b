"""The configuration: settings, their checks, reloading, quotas and groups."""
