"""What benchmarks run on: servers, clients, notebooks that train, and results."""
