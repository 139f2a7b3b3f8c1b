"""The settings that all hosts of a cluster are started with, as `sharedkernel cluster up` was given it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
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
