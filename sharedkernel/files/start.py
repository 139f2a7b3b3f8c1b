"""Start of a user's server: an executor's child that becomes its user, then serves.

Run as ``python -sP -m sharedkernel.files.start LISTENER LOCK`` with the descriptors of a listening unix socket and of a
lock that is held for as long as this process lives, and with a :class:`ServerLaunch` in JSON on its standard input.
Jupyter is imported only once the account is the user's.
"""

from __future__ import annotations

import os
import sys

import msgspec

from sharedkernel.protocol import Account
from sharedkernel.session.kernel.account import become
from sharedkernel.system import processes


class ServerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a user's server."""

    user: str
    #: None: the executor's own
    account: Account | None
    #: seconds without a request, a connection and a terminal after which it ends
    idle_seconds: float


def main(listener: str, lock: str) -> None:
    """Be a user's server until it is idle or stopped."""
    for descriptor in (listener, lock):
        os.set_inheritable(int(descriptor), False)  # terminals must not keep them
    launch = msgspec.json.decode(sys.stdin.buffer.read(), type=ServerLaunch)
    processes.set_name("sk-files")
    processes.reset_signals()
    processes.be_ended_first()
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    account = launch.account
    if account is not None:
        if account.uid is not None:
            processes.gain_no_privileges()
            processes.leave_keyring()
        own = account.runtime_directory  # where a log takes no room from the services
        become(account, log=None if own is None else os.path.join(own, "files.log"))
    os.chdir(os.path.expanduser("~"))
    from sharedkernel.files.app import serve

    serve(int(listener), launch.user, launch.idle_seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
