"""The executors behind the gateway: connections, placement and one status for all."""
