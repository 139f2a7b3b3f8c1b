"""The kernel's sockets: the pace, thread and amount of the messages that pass, and what is kept of them."""
