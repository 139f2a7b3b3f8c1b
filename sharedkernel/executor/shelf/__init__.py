"""Users' shelves: files stored by name, charged to users, and kept when kernels end."""
