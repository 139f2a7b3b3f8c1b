"""What passes the kernel's sockets: at whose pace, on which thread, how much of it, and what is kept of it."""
