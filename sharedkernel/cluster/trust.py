"""Clusters that `sharedkernel cluster up` refuses, since their sessions would be anybody's.

Everybody who may submit Ray jobs can do what Ray's account can: end sessions, read their memory, and get the hosts'
keys. Ray's token keeps others out. Sessions under Ray's own account could read that token.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sharedkernel.cluster.settings import ClusterSettings, split_options

#: seconds that Ray may take to say whether it lets a stranger in
_PROBE_TIMEOUT = 30.0
#: what Ray says to those whom it does not let in
_REFUSALS = ("AuthenticationError", "InvalidAuthToken", "Unauthenticated")


def token_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file of Ray's token, by the environment *environ*; None if the token is not in a file."""
    if named := environ.get("RAY_AUTH_TOKEN_PATH"):
        return Path(named)
    return None if environ.get("RAY_AUTH_TOKEN") else Path(environ.get("HOME", "~")).expanduser() / ".ray/auth_token"


def readable_token(environ: Mapping[str, str]) -> str | None:
    """Return a sentence if others can read the file of Ray's token, or replace it; None if not."""
    path = token_file(environ)
    if path is None:
        return None
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
