"""The gateway's configuration for compose.yaml; copy it to config/, beside the certificate gpu.crt and gpu.key."""

c = get_config()  # noqa: F821

c.ServerApp.ip = "0.0.0.0"
c.ServerApp.port = 8585
c.ServerApp.certfile = "/etc/sharedkernel/gpu.crt"
c.ServerApp.keyfile = "/etc/sharedkernel/gpu.key"
# names by which people reach this machine
c.ServerApp.local_hostnames = ["gpu-host.example.org"]
c.SharedKernelGateway.identity = "tokens"
c.SharedKernelGateway.admins = {"ada"}
c.SharedKernelGateway.quotas = {"default": {"memory": "25%", "share": 1, "sessions": 4}}
