"""The control protocol: typed messages between gateway, executor, warm parent and sessions.

Each message is one msgpack map, tagged with its kind and preceded by its length (4 bytes, big-endian), on a
unix stream socket. The first message on a connection is :class:`Hello`, answered by :class:`Welcome`; a peer of
another :data:`PROTOCOL_VERSION` is refused there, so every later message is understood by both ends. Nothing is ever
unpickled. Bytes are integers, times are seconds.

Each module has one conversation, and which messages either end of it accepts; here are all of them together. This
package covers what is said and how it is framed. It does not cover who says what when: see
`executor/control/router.py` and `session/connection.py`.
"""

from __future__ import annotations

from sharedkernel.protocol.common import *  # noqa: F403 (all of it)
from sharedkernel.protocol.packets import *  # noqa: F403 (all of it)
from sharedkernel.protocol.requests import *  # noqa: F403 (all of it)
from sharedkernel.protocol.requests import FromGateway
from sharedkernel.protocol.sessions import *  # noqa: F403 (all of it)
from sharedkernel.protocol.sessions import FromSession

PROTOCOL_VERSION = 6

#: what an executor accepts on its control socket
ToExecutor = FromGateway | FromSession
