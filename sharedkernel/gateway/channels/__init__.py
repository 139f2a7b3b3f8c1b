"""Messages between a client and its session: websocket, flow control, backlog and replay."""
