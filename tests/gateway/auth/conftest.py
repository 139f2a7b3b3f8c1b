"""A gateway whose users come from a real JupyterHub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharedkernel.local_stack import free_port
from tests.gateway.conftest import Stack, clean_gateway
from tests.gateway.hub import SERVICE, Hub

#: fewer than by default: tests go beyond it
MOST_WRONG_TOKENS = 15
QUOTAS = {"default": {"memory": "25%"}, "groups": {"class": {"share": 2, "sessions": 1}, "staff": {"share": 3}}}


class HubStack(Stack):
    """A gateway whose users come from a hub; rosa is an admin by a scope of hers."""

    def __init__(self, hub: Hub, port: int) -> None:
        config = (
            "c.SharedKernelGateway.identity = 'jupyterhub'\n"
            "c.SharedKernelGateway.hub_cache_seconds = 1\n"
            f"c.SharedKernelGateway.max_failed_logins = {MOST_WRONG_TOKENS}\n"
            f"c.HubAuth.api_url = {hub.api_url!r}\n"
            f"c.HubAuth.access_scopes = {{'access:services!service={SERVICE}'}}\n"
            f"c.HubAuth.hub_host = {hub.url.removesuffix('/hub')!r}\n"
            f"c.HubAuth.api_token = {hub.service_token!r}\n"
            f"import os\nos.environ['JUPYTERHUB_SERVICE_NAME'] = {SERVICE!r}\n"
        )
        super().__init__(users=["nobody"], capacity="1GiB", quotas=QUOTAS, config=config, port=port)
        self.hub = hub
        self._kept: dict[str, str] = {}

    def token(self, user: str) -> str:
        """Return *user*'s hub token; the stack itself asks as rosa."""
        name = "rosa" if user == "nobody" else user
        if name not in self._kept:
            self.hub.wait_until_ready()  # the stack starts beside it
            self._kept[name] = self.hub.token(name)
        return self._kept[name]

    def forget(self, user: str) -> None:
        """Let *user* have another token next time."""
        self._kept.pop(user, None)


@pytest.fixture(scope="package")
def whole_hub_stack() -> Iterator[HubStack]:
    with tempfile.TemporaryDirectory(prefix="sk-hub-") as directory:
        port = free_port()
        hub = Hub(
            Path(directory),
            groups={"class": ["emil", "lise"], "staff": ["lise"], "guests": ["tove"]},
            chiefs=["rosa"],
            gateway_port=port,
        )
        try:
            hub.start()
            with HubStack(hub, port) as stack:
                yield stack
        finally:
            hub.stop()


@pytest.fixture
def hub_stack(whole_hub_stack: HubStack) -> Iterator[HubStack]:
    yield from clean_gateway(whole_hub_stack)
