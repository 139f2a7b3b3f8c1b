"""A real JupyterHub on loopback: its users, groups, tokens and servers, without the proxy that only browsers need."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sharedkernel.client.connect import write_kernelspec
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.local_stack import free_port
from sharedkernel.system.processes import bound_command
from tests.gateway.conftest import wait_for

SERVICE = "sharedkernel"
ADMIN_SCOPE = "custom:sharedkernel:admin"

_CONFIG = """
from jupyterhub.proxy import Proxy
from sharedkernel.system.processes import bound_command

class NoProxy(Proxy):
    should_start = False
    routes = {{}}
    async def add_route(self, routespec, target, data):
        self.routes[routespec] = {{"routespec": routespec, "target": target, "data": data}}
    async def delete_route(self, routespec):
        self.routes.pop(routespec, None)
    async def get_all_routes(self):
        return dict(self.routes)

c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.bind_url = "http://127.0.0.1:{public_port}"
c.JupyterHub.hub_port = {port}
c.JupyterHub.db_url = "sqlite:///hub.sqlite"
c.JupyterHub.cookie_secret_file = "cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allowed_users = {users!r}
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {homes!r}
c.Spawner.cmd = bound_command("jupyterhub.singleuser", ["--allow-root"])
c.Spawner.port = {server_port}
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.Spawner.environment = {{
    "JUPYTER_PATH": {jupyter_path!r},
    "JUPYTER_CONFIG_PATH": {config_path!r},
    "SHAREDKERNEL_GATEWAY_URL": lambda spawner: spawner.user_options.get("gateway", ""),
    "SHAREDKERNEL_TOKEN": lambda spawner: spawner.api_token if "gateway" in spawner.user_options else "",
}}
c.JupyterHub.load_groups = {groups!r}
c.JupyterHub.custom_scopes = {{"{admin_scope}": {{"description": "Administer shared devices."}}}}
c.JupyterHub.services = [
    {{"name": "{service}", "oauth_redirect_uri": "{redirect_uri}", "oauth_no_confirm": True,
     "api_token": "{service_token}", "oauth_client_allowed_scopes": ["{admin_scope}"]}},
    {{"name": "operator", "api_token": "{operator_token}"}},
]
c.JupyterHub.load_roles = [
    {{"name": "user", "scopes": ["self", "access:services!service={service}"]}},
    {{
        "name": "server",
        "scopes": ["users:activity!user", "access:servers!server", "access:services!service={service}"],
    }},
    {{"name": "chief", "scopes": ["{admin_scope}"], "users": {chiefs!r}}},
    {{"name": "operator", "scopes": ["admin:users", "admin:groups", "servers", "tokens", "inherit"],
     "services": ["operator"]}},
]
"""


class Hub:
    """One JupyterHub in *directory*; stopped and started as a test wants.

    Its users may sign in at a gateway on the port *gateway_port*.
    """

    def __init__(
        self, directory: Path, *, groups: Mapping[str, Sequence[str]], chiefs: Sequence[str], gateway_port: int
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/hub"
        self.api_url = f"{self.url}/api"
        #: of the one user's server that may run at a time
        self._server_port = free_port()
        self._operator_token = secrets.token_hex(16)
        #: what the gateway shows the hub when somebody signs in
        self.service_token = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        users = {user for members in groups.values() for user in members} | set(chiefs)
        loaded = {name: {"users": list(members)} for name, members in groups.items()}
        config = _CONFIG.format(
            public_port=free_port(), port=self.port, users=users, groups=loaded,
            redirect_uri=f"http://127.0.0.1:{gateway_port}/sharedkernel/page/hub/return",
            admin_scope=ADMIN_SCOPE, service=SERVICE, service_token=self.service_token,
            operator_token=self._operator_token, chiefs=list(chiefs), server_port=self._server_port,
            homes=f"{directory}/homes/{{username}}", jupyter_path=str(self.image / "share" / "jupyter"),
            config_path=str(self.image / "etc" / "jupyter"),
        )  # fmt: skip
        directory.mkdir(exist_ok=True)
        write_kernelspec(self.image / "share" / "jupyter" / "kernels" / KERNEL_NAME)
        (directory / "hub_config.py").write_text(config)

    @property
    def image(self) -> Path:
        """What servers have in their environment."""
        return self.directory / "image"

    def start(self) -> None:
        """Start it; :meth:`wait_until_ready` says when it answers."""
        with (self.directory / "hub.log").open("ab") as log:
            self._process = subprocess.Popen(
                bound_command("jupyterhub", ["-f", "hub_config.py"]),
                cwd=self.directory, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONWARNINGS": "ignore"},
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        def answers() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, (self.directory / "hub.log").read_text()
            try:
                self.call("GET", "/users")
            except OSError:
                return False
            return True

        wait_for(answers)

    def stop(self) -> None:
        """End it; nobody is logged out by that."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Ask its API as its operator."""
        request = urllib.request.Request(
            self.api_url + path,
            method=method,
            headers={"Authorization": f"token {self._operator_token}"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read() or b"null")

    def token(self, user: str, **request: Any) -> str:
        """Return a new token of *user*."""
        return str(self.call("POST", f"/users/{user}/tokens", request)["token"])

    def start_server(self, user: str, gateway_url: str | None = None) -> str:
        """Start *user*'s Jupyter server, told of nothing but the gateway, if that, and return its address."""
        self.call("POST", f"/users/{user}/server", {} if gateway_url is None else {"gateway": gateway_url})
        wait_for(lambda: self._servers(user).get("", {}).get("ready"))
        return f"http://127.0.0.1:{self._server_port}/user/{user}"

    def stop_server(self, user: str) -> None:
        """Stop *user*'s server as its owner would, and take its token away with it."""
        self.call("DELETE", f"/users/{user}/server")
        wait_for(lambda: not self._servers(user))

    def server_token_scopes(self, user: str) -> set[str]:
        """Return what the token of *user*'s server may do at the hub."""
        tokens = self.call("GET", f"/users/{user}/tokens")["api_tokens"]
        (scopes,) = [token["scopes"] for token in tokens if str(token["note"]).startswith("Server at")]
        return set(scopes)

    def _servers(self, user: str) -> dict[str, Any]:
        servers: dict[str, Any] = self.call("GET", f"/users/{user}")["servers"]
        return servers

    def revoke_all(self, user: str) -> None:
        """Take away every token of *user*."""
        for token in self.call("GET", f"/users/{user}/tokens")["api_tokens"]:
            self.call("DELETE", f"/users/{user}/tokens/{token['id']}")
