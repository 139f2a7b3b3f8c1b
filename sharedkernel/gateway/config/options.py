"""The gateway's options, as ``c.SharedKernelGateway.NAME`` in a configuration file."""

from __future__ import annotations

import socket
from pathlib import Path

from traitlets import Any as AnyTrait
from traitlets import Bool, Enum, Float, HasTraits, Integer, Set, Unicode, default

from sharedkernel.gateway.auth.tokens import default_tokens_file
from sharedkernel.paths import default_runtime_directory
from sharedkernel.scheduling.placement import PLACEMENTS
from sharedkernel.scheduling.policies.registry import POLICIES, POLICY_HELP


class GatewayOptions(HasTraits):
    """Traits of :class:`~sharedkernel.gateway.app.SharedKernelGateway`, beside those of Jupyter's server.

    Those with the tag `option` or `flag` are options of the command, too.
    """

    runtime_dir = Unicode(
        help="Private directory in which the gateway and the executors meet. Default: $XDG_RUNTIME_DIR/sharedkernel, "
        "or /tmp/sharedkernel-UID where there is none."
    ).tag(option=True)
    state_dir = Unicode(
        help="Private directory for what outlives a reboot: the audit log, groups from JupyterHub, the hosts of a "
        "cluster. Default: $XDG_STATE_HOME/sharedkernel, or ~/.local/state/sharedkernel; in it, one for each "
        "runtime_dir that is named."
    ).tag(option=True)
    identity = Enum(
        ["single", "tokens", "jupyterhub"],
        "single",
        help="How users are identified: `single` (you, with one generated token), `tokens` (see `sharedkernel token`) "
        "or `jupyterhub` (its users, with tokens of the hub).",
    ).tag(option=True)
    tokens_file = Unicode(
        help="The file of users' tokens, for identity `tokens`. Default: `sharedkernel_tokens.json` in Jupyter's "
        "configuration directory."
    ).tag(option=True)
    class_file = Unicode(
        help="The file that keeps classes (see `sharedkernel class`): their users, what these may use, until when. "
        "Default: `sharedkernel_class.json` beside the file of tokens."
    )
    hub_cache_seconds = Integer(
        60,
        min=0,
        help="How long JupyterHub's answer about a token is kept, in seconds: a revoked token works that long, and the "
        "hub may be away that long. 0: ask for each request.",
    )
    hub_admin_scope = Unicode(
        "custom:sharedkernel:admin",
        help="The scope that makes the user of a hub's token an admin here. The hub's own admins are admins too, where "
        "a token may read that (`read:users`).",
    )
    admins = Set(Unicode(), help="Users who see everybody's sessions and may change quotas.")
    quotas = AnyTrait(
        {},
        help="What users may use: {'default': {…}, 'groups': {NAME: {…}}, 'users': {NAME: {…}}} with the keys memory "
        "('8GiB', '25%'), share (1.0 is usual), sessions (a number), priority, offload_after and cull_after ('10m').",
    )
    groups = AnyTrait({}, help="Members of groups: {NAME: [USER, …]}.")
    executors = AnyTrait(
        [],
        help="The devices whose executors this gateway uses, such as ['cuda:0', 'cuda:1'], or cuda:0,cuda:1 on a "
        "command line. Start each with "
        "`sharedkernel executor --device NAME` and the same --runtime-dir. Default: the only executor.",
    )
    cluster_key = Unicode(
        help="The file with the key of a cluster of several hosts, which nobody else may read: on a front gateway the "
        "cluster's secret, on a host its own key, which `sharedkernel gateway --host-key NAME` prints. Default: none, "
        "this host is on its own."
    ).tag(option=True)
    host_name = Unicode(help="This host's name in the cluster. Default: the machine's name.").tag(option=True)
    front = Bool(
        help="Be a front of the cluster: have no executors, and forward requests to the hosts that register here.",
    ).tag(flag="front")
    fronts = AnyTrait(
        [], help="URLs of the cluster's fronts, at which this host registers, such as ['https://gpu.example.org:8585']."
    ).tag(option=True)
    host_address = Unicode(
        help="URL at which the fronts reach this host. Default: the machine's name or `ip`, and the port."
    )
    cluster_ca = Unicode(
        help="File with the certificate authorities for the certificates of the cluster's gateways. Default: the "
        "system's."
    )
    host_key = Unicode(help="Print the key of the host of this name, and start nothing.").tag(option=True)
    policy = Enum(
        [*POLICIES, ""],
        "",
        help=f"The policy that ranks sessions on every device. {POLICY_HELP} Default: the one that each executor was "
        "started with.",
    )
    placement = Enum(
        list(map(str, PLACEMENTS)),
        "least-loaded",
        help="Rule that chooses the device of a new session: `least-loaded`, `tiresias` (an idle one), `allox` (where "
        "it would end soonest), `horus` (least interference, then the tightest fit of memory).",
    )
    allow_insecure_remote = Bool(
        help="Listen beyond this machine without encryption. Only for use behind a proxy that encrypts: tokens and "
        "notebooks can be read on the network otherwise.",
    )
    max_failed_logins = Integer(
        30,
        min=0,
        help="Different wrong tokens that one address may send within `failed_login_seconds`; the answer to further "
        "ones says that they are too many. A right token always works. 0: any number.",
    )
    failed_login_seconds = Float(60.0, help="How long a wrong token counts, in seconds.")
    max_websockets = Integer(
        200,
        min=1,
        help="Most websockets that a user may have open: two for each notebook in JupyterLab, and one for each page "
        "that watches the status.",
    )
    files = Bool(True, help="Whether users may use their files on this machine: list, edit, upload and download them.")
    terminals = Bool(
        help="Whether users may open terminals on this machine. What runs there takes no turns on a GPU, and "
        "counts for no quota.",
    )
    ports = Bool(
        True,
        help="Forward ports: users reach what their programs serve on this host's loopback, from their own machine.",
    )
    max_user_bytes = Integer(
        256 * 1024**2,
        min=1024**2,
        help="Most bytes of a user that the gateway holds at a time, over all connections: of requests, and of "
        "messages that are unfinished, that sessions have not read, and that clients have not taken, each. More "
        "requests and messages are refused, unfinished ones wait, and clients that take nothing are disconnected.",
    )
    revocation_seconds = Float(
        60.0, help="Seconds between checks of the tokens of open websockets; those with a revoked token are closed."
    )
    audit_file = Unicode(
        help="The audit log: who did what to whose session, as lines of JSON; `none`: no audit log. Default: "
        "`audit.jsonl` in the state directory (`state_dir`)."
    ).tag(option=True)
    unclaimed_seconds = Float(
        600.0,
        min=0,
        help="How long a session in which nothing has run, or of no notebook, waits for a client that is away, in "
        "seconds; then it ends. 0: for good.",
    )
    log_style = Enum(["text", "json"], "text", help="Logs for people (`text`) or machines (`json`).").tag(option=True)
    check_config = Bool(
        False, help="Print what is wrong with the configuration, one sentence for each fault, and start nothing."
    ).tag(flag="check-config")
    drain = Bool(
        False, help="Stop the running gateway once its cells have ended; it starts no new sessions. Sessions run on."
    ).tag(flag="drain")
    cancel_drain = Bool(False, help="With --drain: have a gateway that drains serve on.").tag(flag="cancel")
    drain_seconds = Float(
        600.0, help="How long draining waits for running cells, in seconds; they run on. 0: until they have ended."
    )
    request_patience = Float(
        60.0,
        help="How long a client may take to send a request, or leave a connection idle, in seconds; then it is closed.",
    )
    max_body_size = Integer(1024**2, help="Largest body of a request, in bytes.")

    _default_host_name = default("host_name")(lambda self: socket.gethostname())
    _default_class_file = default("class_file")(
        lambda self: str(Path(self.tokens_file).parent / "sharedkernel_class.json")
    )
    _default_runtime_dir = default("runtime_dir")(lambda self: str(default_runtime_directory()))
    _default_tokens_file = default("tokens_file")(lambda self: str(default_tokens_file()))


for _setting in GatewayOptions.class_traits().values():
    _setting.tag(config=True)
