"""A session's process that has started afresh; see :func:`sharedkernel.session.kernel.restart.start_afresh`."""

from __future__ import annotations

import json
import os
import sys
import traceback

from sharedkernel import protocol
from sharedkernel.system.processes import end_process


def main(arguments: str, message: str) -> None:
    """Serve the session of *message*, a descriptor, with the *arguments* of the process before, as JSON."""
    if sys.path[0] in ("", os.getcwd()):  # sessions look for modules where their notebooks are
        del sys.path[0]
    with open(int(message), "rb") as file:
        [assign] = protocol.Decoder(protocol.ToSession, most=protocol.MAX_ANSWER_BYTES).feed(file.read())
    # Not before: user modules must not be imported from the notebook's folder.
    from sharedkernel.session.kernel.restart import Launch

    launch = Launch(**json.loads(arguments))
    os.set_inheritable(launch.page_descriptor, False)
    from sharedkernel.session.kernel import app  # imports what may start processes

    app.prepare()
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
