"""Device memory: who is charged what, who may come in, and who makes room."""
