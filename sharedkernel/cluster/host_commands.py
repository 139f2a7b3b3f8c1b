"""``sharedkernel cluster status``, ``drain``, ``undrain``, ``forget``: asked of a front, and of Ray where it answers.

Ray is not needed: a front knows the hosts, and a host keeps by itself that it is drained.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any, ClassVar
from urllib.parse import quote

from traitlets import Bool, Unicode

from sharedkernel.cli.base import GatewayCommandApp, fail
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.cluster.commands import connect, merge_hosts_known, report
from sharedkernel.errors import ConfigError, SharedKernelError
from sharedkernel.status.text import safe_text
from sharedkernel.units import format_seconds, parse_duration

#: of a front: its hosts
HOSTS_PATH = "/sharedkernel/api/hosts"
#: seconds between two looks at what is waited for, and for which a front that went away is waited for
_INTERVAL, _PATIENCE = 1.0, 60.0


class _HostCommandApp(GatewayCommandApp):
    """Base of the commands about hosts."""

    address = Unicode(help="Address of the Ray cluster. Default: the one of this machine, if there is one.")
    patience = 20.0  # a front waits for the host
    #: what it does to a host; empty: it is about all of them
    verb: ClassVar[str] = ""

    def host(self) -> str:
        """Return the host that the line names.

        Raises
        ------
        SystemExit
            With 2 if it does not name one.
        """
        if len(self.extra_args) != 1:
            fail(f"name the host to {self.verb}, such as `sharedkernel {self.name} h2`.", status=2)
        return str(self.extra_args[0])

    def ask_ray(self, method: str, *arguments: str) -> Any:
        """Return what the directory in Ray answers; None, and a line that says why, where Ray is not there."""
        if importlib.util.find_spec("ray") is None:
            return None
        try:
            return connect(self.address).ask(method, *arguments)
        except SharedKernelError as error:
            print(f"sharedkernel: without Ray: {error}", file=sys.stderr)  # noqa: T201
            return None


class ClusterStatusApp(_HostCommandApp):
    """Shows the hosts."""

    name = "cluster status"
    description = """
        Show each host of the cluster: whether it answers, whether it is in Ray, its devices, sessions and version.

        "adopted" means that the host's services ran already when Ray's agent came. A host that is not in Ray serves
        on.
    """
    examples = """
        sharedkernel cluster status
        sharedkernel cluster status --json
        sharedkernel cluster status --no-ray      # what the front knows
    """

    no_ray = Bool(False, help="Do not ask Ray.")
    as_json = Bool(False, help="Print JSON instead of a table.").tag(option="json")

    def start(self) -> None:
        """Ask once and print the answers.

        Raises
        ------
        SharedKernelError
            When neither the front nor Ray answers.
        """
        in_ray = None if self.no_ray else self.ask_ray("hosts")
        at_front: list[dict[str, Any]] = []
        try:
            at_front = self.ask(HOSTS_PATH)["hosts"]
        except SharedKernelError as error:
            if in_ray is None:
                raise
            print(f"sharedkernel: without a front: {error}", file=sys.stderr)  # noqa: T201
        hosts = merge_hosts_known(at_front, in_ray or ())
        report(hosts, as_json=self.as_json)
        if not hosts and not self.as_json:
            print("No hosts.")  # noqa: T201


class DrainApp(_HostCommandApp):
    """Takes a host out of service."""

    name = "cluster drain"
    verb = "drain"
    description = """
        Take a host out of service without losing anything: it gets no new sessions, each notebook there is told once,
        and this waits until no user has a session or a shelf there. For admins.

        Then Ray's agent leaves it, so that an autoscaler may have the node. If users still have something there after
        --timeout, they are listed, the exit code is 1, and the host goes on draining: run it again, or `undrain`. A
        shelf stays on its host, so who has one is listed; with --leave-shelves the host does not wait for them.
    """
    examples = """
        sharedkernel cluster drain h2
        sharedkernel cluster drain h2 --timeout 8h
        sharedkernel cluster drain h2 --timeout 0s    # begin, and do not wait
        sharedkernel cluster drain h2 --leave-shelves
    """
    accepts_arguments = True

    timeout = Unicode("10m", help="How long to wait until no user has a session or a shelf there.")
    leave_shelves = Bool(False, help="Do not wait for users of whom nothing is there but a shelf.")
    as_json = Bool(False, help="Print the host as JSON in the end.").tag(option="json")

    def start(self) -> None:
        """Drain the host.

        Raises
        ------
        SharedKernelError
            When the front does not answer, or refuses.
        SystemExit
            With 2 for wrong use, 1 when users still have something there.
        """
        name = self.host()
        try:
            seconds = parse_duration(self.timeout)
        except ConfigError as error:
            fail(f"--timeout: {error}", status=2)
        order = {"cordoned": True, "leave_shelves": self.leave_shelves}
        self.ask(f"{HOSTS_PATH}/{quote(name, safe='')}", "PUT", order)
        if not self.as_json:
            print(f"{safe_text(name)} gets no new sessions, and its notebooks are told.", flush=True)  # noqa: T201
        host = self._wait(name, seconds)
        if self.as_json:
            print(json.dumps(host))  # noqa: T201
        if host["drained"]:
            if not self.as_json:
                shelves = ", ".join(map(safe_text, sorted(host["users"])))
                what = f"a session there; shelves remain of {shelves}" if shelves else "a session or a shelf there"
                print(f"{safe_text(name)} is drained: no user has {what}.")  # noqa: T201
            return
        for line in left_words(host) if not self.as_json else ():
            print(line)  # noqa: T201
        fail(f"after {format_seconds(seconds)} users still have something on {safe_text(name)}: {len(host['users'])}.")

    def _wait(self, name: str, seconds: float) -> dict[str, Any]:
        """Return what the front knows of the host once it is drained, or after *seconds*."""
        deadline = time.monotonic() + seconds
        heard = time.monotonic()
        while True:
            try:
                host = next((host for host in self.ask(HOSTS_PATH)["hosts"] if host["name"] == name), None)
                heard = time.monotonic()
            except (GatewayUnreachable, GatewayRefused):
                if time.monotonic() > heard + _PATIENCE:
                    raise
                host = {}
            if host is None:
                fail(f"{safe_text(name)} was forgotten meanwhile.")
            if host and (host["drained"] or time.monotonic() >= deadline):
                return host
            time.sleep(_INTERVAL)


class UndrainApp(_HostCommandApp):
    """Lets a host have new sessions again."""

    name = "cluster undrain"
    verb = "undrain"
    description = "Let a host that was drained have new sessions again. For admins."
    examples = "sharedkernel cluster undrain h2"
    accepts_arguments = True

    def start(self) -> None:
        """Undo the drain.

        Raises
        ------
        SharedKernelError
            When the front does not answer, or refuses.
        """
        name = self.host()
        self.ask(f"{HOSTS_PATH}/{quote(name, safe='')}", "PUT", {"cordoned": False})
        self.ask_ray("undrain", name)
        print(f"{safe_text(name)} gets new sessions again.")  # noqa: T201


class ForgetApp(_HostCommandApp):
    """Forgets a host."""

    name = "cluster forget"
    verb = "forget"
    description = """
        Forget a host that is gone for good, with its sessions. A host that is only absent is never forgotten by itself:
        its sessions may run on. For admins.
    """
    examples = "sharedkernel cluster forget h2"
    accepts_arguments = True

    def start(self) -> None:
        """Forget the host.

        Raises
        ------
        SharedKernelError
            When the front does not answer, or refuses: the host answers, or there is none of that name.
        """
        name = self.host()
        self.ask(f"{HOSTS_PATH}/{quote(name, safe='')}", "DELETE")
        self.ask_ray("forget", name)
        print(f"{safe_text(name)} is forgotten.")  # noqa: T201


def left_words(host: dict[str, Any]) -> list[str]:
    """Return a line for each user who still has something on a host."""
    lines = []
    for name, user in sorted(host.get("users", {}).items()):
        number_of = user["sessions"]
        parts = [f"{number_of} session{'s' * (number_of != 1)}"] if number_of else []
        parts += ["a shelf"] * user["has_shelf"] + ["a session to have back"] * user["lingers"]
        lines.append(safe_text(f"{name}: {' and '.join(parts) or 'something'}"))
    return lines
