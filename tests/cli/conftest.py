from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharedkernel.local_stack import LocalStack
from tests.cli.support import end_sessions, run
from tests.warm_stack import WarmStack


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Run a stack with three users."""
    with WarmStack(users=["ada", "grace", "hedy"], capacity="2GiB", quotas={"users": {"grace": {"share": 2}}}) as stack:
        yield stack


@pytest.fixture
def as_before(stack: LocalStack) -> Iterator[None]:
    """Leave the quotas and the policy as they were, and no session, to the next test."""
    yield
    run(stack, "ada", "quota", "--reset", status=0)
    run(stack, "ada", "policy", "fair", status=0)
    end_sessions(stack)
