"""Listen for a kernel's client, then run the kernel: ``python -P -S start.py MODULE -f CONNECTION_FILE …``.

A client connects some ten milliseconds after it has started a kernel's process. zmq tries again 100 to 200 ms after an
attempt that was refused, and a Jupyter server waits for two such connections in a row: that was most of a relay's
start. So this runs before Python looks for its packages (``-S``), listens, and runs the module, which is told the
descriptors by ``--listening``; zmq takes them over, with the connections that wait in them. See
`docs/decisions/2026-11-24-relay-start.md`.

`sharedkernel install` copies this file into the kernelspec. It imports nothing but what Python has imported already,
and the part of `socket` that is written in C; whatever it cannot do, the module does later.
"""

import sys

#: what a connection file has a port for, in the order in which the descriptors are passed on
SOCKETS = ("shell", "control", "stdin", "iopub", "hb")
#: connections that wait to be accepted, as many as zmq has by default
_BACKLOG = 100


def listen(path: str) -> list[int]:
    """Listen at the ports that a connection file names; return the descriptors, or none if that is not possible."""
    try:
        from _socket import SO_REUSEADDR, SOL_SOCKET, socket
    except ImportError:
        return []
    sockets: list[socket] = []
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        # On Windows zmq could not be handed a socket: its option may be too short for a handle.
        ip = _find(text, "ip")
        # Not by name, which would have to be looked up.
        if sys.platform == "win32" or _find(text, "transport") != "tcp" or not ip.replace(".", "").isdigit():
            return []
        for name in SOCKETS:
            sockets.append(socket())
            # as zmq does: a kernel that is restarted has the ports of the one before it
            sockets[-1].setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            sockets[-1].bind((ip, int(_find(text, f"{name}_port"))))
            sockets[-1].listen(_BACKLOG)
            sockets[-1].setblocking(False)
    except (OSError, ValueError, OverflowError):
        for listener in sockets:
            listener.close()
        return []
    return [listener.detach() for listener in sockets]


def _find(text: str, key: str) -> str:
    """Return what *text*, a flat JSON object, has for *key*; importing `json` would take as long as all of this."""
    _, found, rest = text.partition(f'"{key}":')
    if not found:
        raise ValueError(key)
    return rest.partition(",")[0].strip(' \n\t}"')


if __name__ == "__main__":
    module, *arguments = sys.argv[1:]
    descriptors = listen(arguments[arguments.index("-f") + 1]) if "-f" in arguments else []
    import site

    site.main()
    import runpy

    sys.argv[1:] = [*arguments, "--listening", ",".join(map(str, descriptors))] if descriptors else arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
