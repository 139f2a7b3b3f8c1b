"""The settings that all hosts of a cluster are started with, and clusters that are refused.

``sharedkernel cluster up`` is given the settings. Everybody who may submit Ray jobs can do what Ray's account can: end
sessions, read their memory, and get the hosts' keys. Ray's token keeps others out. Sessions under Ray's own account
could read that token.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from sharedkernel.errors import ConfigError
from sharedkernel.paths import default_runtime_directory, parse_devices

#: the label of a Ray node that is one of the hosts; its value is the host's name
LABEL = "sharedkernel.io/host"
#: the resource of such a node: how many of its devices are ours
RESOURCE = "sharedkernel"
#: where the actors are, and the name of the one that knows the hosts
NAMESPACE, DIRECTORY = "sharedkernel", "sharedkernel-directory"
#: seconds between what agents tell the directory, and after which one that tells nothing counts as gone
INTERVAL, PATIENCE = 2.0, 15.0
#: what stands for the host's name in options
_PLACEHOLDER = "{host}"
#: seconds that Ray may take to say whether it lets a stranger in
_PROBE_TIMEOUT = 30.0
#: what Ray says to those whom it does not let in
_REFUSALS = ("AuthenticationError", "InvalidAuthToken", "Unauthenticated")


class ClusterSettings(msgspec.Struct, kw_only=True):
    """The settings that all hosts are started with. The cluster's secret is not in here: it stays in its file."""

    #: the file with the cluster's secret, on the machine of the directory
    key_file: str
    fronts: list[str]
    #: names of devices; empty: those that are there
    devices: str = ""
    executor_options: str = ""
    gateway_options: list[str] = []
    #: empty: the account's usual one
    runtime_dir: str = ""
    #: something else starts `sharedkernel host`: systemd, or a container beside Ray's
    is_supervised: bool = False

    def directory(self, host: str) -> Path:
        """Return the runtime directory of *host*."""
        return Path(self.runtime_dir.replace(_PLACEHOLDER, host)) if self.runtime_dir else default_runtime_directory()

    def command(self, program: Sequence[str], host: str, devices: Sequence[str], key: Path) -> list[str]:
        """Return the command line of `sharedkernel host` on a host.

        Parameters
        ----------
        program
            What runs ``sharedkernel`` there.
        host, devices
            The host's name, and its devices by their physical numbers.
        key
            The file with its key there.
        """
        options = self.executor_options.replace(_PLACEHOLDER, host)
        return [
            *program, "host", "--runtime-dir", str(self.directory(host)), "--devices", ",".join(devices),
            f"--executor-options={options}", "--",
            "--cluster-key", str(key), "--host-name", host, "--fronts", ",".join(self.fronts),
            *(option.replace(_PLACEHOLDER, host) for option in self.gateway_options),
        ]  # fmt: skip

    def choose_devices(self, count: int, found: Sequence[str]) -> list[str]:
        """Return the devices that a host serves.

        Parameters
        ----------
        count
            How many of them Ray gives us there, by the node's resource.
        found
            The GPUs of the host.

        Raises
        ------
        ConfigError
            When there are fewer than that.
        """
        named = list(parse_devices(self.devices)) if self.devices else list(found)
        named = named or ["host", *(f"host:{number}" for number in range(1, count))]
        if count > len(named):
            raise ConfigError(
                f"the node has {count} of the resource `{RESOURCE}`, and {len(named)} devices ({', '.join(named)}); "
                "restart Ray there with the right number."
            )
        return named[:count]


def split_options(option: str, text: str) -> list[str]:
    """Return the options in *text*, as a shell would split them.

    Raises
    ------
    ConfigError
        When its quotes are not closed; *option* is where it was given.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{option} cannot be read ({error}); check its quotes.") from None


def readable_token(environ: Mapping[str, str]) -> str | None:
    """Return a sentence if others can read the file of Ray's token, or replace it; None if not."""
    named = environ.get("RAY_AUTH_TOKEN_PATH")
    if not named and environ.get("RAY_AUTH_TOKEN"):
        return None  # the token is not in a file
    path = Path(named) if named else Path(environ.get("HOME", "~")).expanduser() / ".ray/auth_token"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None  # then there is none, which `open_to_strangers` finds
    if mode & 0o077:
        return (
            f"others can read Ray's token in {path} (mode {mode:04o}) and would own every session; run `chmod 600 "
            f"{path}`, and make a new token if others have accounts there."
        )
    return None


def open_to_strangers(address: str) -> str | None:
    """Return a sentence if the Ray cluster at *address* lets in clients without its token, or does not answer.

    Asks it as a stranger would, since a setting on this side says nothing about the other.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "health-check"]
    try:
        asked = subprocess.run(
            [*command, "--address", address],
            env=environ | {"RAY_AUTH_MODE": "disabled"},
            capture_output=True, text=True, timeout=_PROBE_TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"Ray at {address} did not say within {_PROBE_TIMEOUT:g} s whether it lets strangers in; try again."
    if asked.returncode == 0:
        return (
            f"the Ray cluster at {address} lets in anybody who reaches it, and they would own every session; start it "
            "with RAY_AUTH_MODE=token (`ray get-auth-token --generate` makes a token; run `chmod 600` on its file)."
        )
    if any(word in asked.stderr for word in _REFUSALS):
        return None
    last = asked.stderr.strip().splitlines()[-1:] or ["nothing"]
    return f"Ray at {address} did not say whether it lets strangers in, but: {last[0][:200]}"


def shared_account(settings: ClusterSettings, *, is_single: bool) -> str | None:
    """Return a sentence if several users' sessions would run under Ray's account; None if not.

    Parameters
    ----------
    settings
        Has the executors' options.
    is_single
        Whether one person uses the whole cluster.
    """
    if is_single or settings.is_supervised:
        return None
    options = split_options("--executor-options", settings.executor_options.replace("=", " "))
    isolate = options[options.index("--isolate") + 1 :][:1] if "--isolate" in options else ["auto"]
    if isolate == ["users"] or (isolate == ["auto"] and "--uid-range" in options):
        return None
    return (
        "sessions would run under the account of the hosts' services, where each user can read the others' files and "
        'the key of the host; run Ray as root with --executor-options="--isolate users --uid-range 200000-299999", let '
        "systemd start the hosts (--supervised), or say --single-user."
    )
