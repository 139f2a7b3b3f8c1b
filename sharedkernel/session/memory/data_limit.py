"""The limit that the executor sets on a session's private memory, where the device is this machine (RLIMIT_DATA)."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def unlimited_rlimit() -> Iterator[None]:
    """Lift the limit for what the session does itself; of user code only an exception's own words are asked for."""
    limit, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != hard:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        # The executor may have set another one meanwhile, which holds.
        if limit != hard and resource.getrlimit(resource.RLIMIT_DATA)[0] == hard:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
