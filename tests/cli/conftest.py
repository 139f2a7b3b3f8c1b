from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharedkernel.local_stack import LocalStack
from tests.warm_stack import WarmStack


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Run a stack with three users."""
    with WarmStack(users=["ada", "grace", "hedy"], capacity="2GiB", quotas={"users": {"grace": {"share": 2}}}) as stack:
        yield stack
