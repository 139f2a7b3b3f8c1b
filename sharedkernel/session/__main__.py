"""A session's process that has started afresh; see :func:`sharedkernel.session.kernel.restart.start_afresh`."""

from __future__ import annotations

import os
import sys
import traceback

from sharedkernel import protocol
from sharedkernel.system.processes import end_process


def main(
    process: str,
    connection_file: str,
    executor_socket: str,
    page: str,
    device_kind: str,
    memory_mode: str,
    isolation: str,
    message: str,
) -> None:
    """Serve the assigned session."""
    if sys.path[0] in ("", os.getcwd()):  # sessions look for modules where their notebooks are
        del sys.path[0]
    os.set_inheritable(int(page), False)
    with open(int(message), "rb") as file:
        [assign] = protocol.Decoder(protocol.ToSession, most=protocol.MAX_ANSWER_BYTES).feed(file.read())
    # Not before: user modules must not be imported from the notebook's folder.
    from sharedkernel.session.kernel import app
    from sharedkernel.session.kernel.restart import Launch

    app.prepare()
    launch = Launch(process, connection_file, executor_socket, int(page), device_kind, memory_mode, isolation)
    app.run(launch, assign=assign)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except SystemExit as exit_:
        end_process(exit_.code if isinstance(exit_.code, int) else 1)
    except BaseException:
        traceback.print_exc()
        end_process(1)
    end_process(0)
