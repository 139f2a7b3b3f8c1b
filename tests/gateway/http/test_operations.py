"""The operation of a gateway: health, metrics, logs, the audit log."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tornado.httpclient import HTTPClientError

from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.http.health import DeviceMetrics
from sharedkernel.status.document import DeviceStatus, StatusDocument
from tests.gateway.client import Channels, Client
from tests.gateway.conftest import Stack

#: labels as sorted pairs, by metric
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(client: Client) -> Samples:
    """Return every sample of `/metrics`."""
    answer = await client.request("GET", "/metrics")
    assert answer.status == 200, answer
    samples = [sample for family in text_string_to_metric_families(answer.body) for sample in family.samples]
    assert len({(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples}) == len(samples)
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def total(samples: Samples, metric: str, **labels: str) -> float:
    """Return the sum of *metric* over everything with these labels."""
    return sum(
        value for (name, pairs), value in samples.items() if name == metric and labels.items() <= dict(pairs).items()
    )


def audit(stack: Stack) -> list[dict[str, Any]]:
    path = stack.runtime_directory / "audit.jsonl"
    if not path.exists():
        return []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_metrics_tell_memory_waits_decisions_and_refusals(stack: Stack) -> None:
    """By device, user, kind and reason; what a cell did is in them."""
    grace = stack.client("grace")
    before = await scrape(grace)
    async with grace.attach(await grace.start()) as channels:
        await channels.run("import torch\nx = torch.ones(1024, 1024)\nfor _ in range(50): y = x @ x")
    for _ in range(3):
        await grace.request("POST", "/api/kernels", {})
    after = await scrape(grace)
    # The executor hears of the cell's end on another way than its client, and the lag is measured now and then.
    service, lag = "sharedkernel_user_service_seconds_total", "sharedkernel_gateway_loop_lag_seconds_count"
    while total(after, service, user="grace") <= total(before, service, user="grace") or not total(after, lag):
        after = await scrape(grace)

    def grown(metric: str, **labels: str) -> float:
        return total(after, metric, **labels) - total(before, metric, **labels)

    assert total(after, "sharedkernel_device_up", device="host") == 1
    assert total(after, "sharedkernel_user_memory_bytes", user="grace", kind="persistent") >= 4 * 1024**2
    assert total(after, "sharedkernel_sessions", user="grace") == 3
    assert total(after, "sharedkernel_user_quota_bytes", user="grace") == 1024**3
    assert grown("sharedkernel_user_service_seconds_total", user="grace") > 0
    assert grown("sharedkernel_grants_total") >= 1
    assert grown("sharedkernel_wait_seconds_count") >= 1
    assert grown("sharedkernel_refused_requests_total", reason="quota") == 1
    assert grown("http_request_duration_seconds_count") > 0
    assert total(after, "sharedkernel_gateway_loop_lag_seconds_count") > 0


def test_a_gpus_sensors_are_metrics_and_absent_ones_are_left_out() -> None:
    """A device without sensors, or with some, has no figure of zero."""
    gpu = DeviceStatus(
        name="NVIDIA L4", utilisation=0.0, temperature_celsius=61.0, power_watts=58.3, power_limit_watts=None
    )
    documents = {"cuda:0": StatusDocument(device=gpu), "host": StatusDocument(device=DeviceStatus(name="host"))}
    text = generate_latest(DeviceMetrics(documents, {}, documents).registry).decode()
    found = [line for line in text.splitlines() if line.startswith("sharedkernel_device_") and "bytes" not in line]
    assert found == [
        'sharedkernel_device_up{device="cuda:0"} 1.0',
        'sharedkernel_device_up{device="host"} 1.0',
        'sharedkernel_device_utilisation{device="cuda:0"} 0.0',
        'sharedkernel_device_temperature_celsius{device="cuda:0"} 61.0',
        'sharedkernel_device_power_watts{device="cuda:0"} 58.3',
    ]


@pytest.mark.heavy
async def test_metrics_and_readiness_say_when_the_executor_is_away(stack: Stack) -> None:
    """The gateway is alive, not ready; its own figures are there. So it is of one that hangs, but for the sentence.

    Probes need no token, and learn nothing else.
    """
    ada, nobody, process = stack.client("ada"), Client(stack.gateway_url, ""), stack.executor.process

    async def until_ready_is(status: int) -> str:
        while (answer := await nobody.request("GET", "/readyz")).status != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return str(answer.body)

    process.send_signal(signal.SIGSTOP)
    try:
        answer = await ada.request("GET", "/sharedkernel/api/status")
        assert (answer.status, "does not answer" in answer.body["message"]) == (503, True)
        assert "does not answer" in await until_ready_is(503)
    finally:
        process.send_signal(signal.SIGCONT)
    assert await until_ready_is(200) == "ok\n"
    assert (await ada.request("GET", "/sharedkernel/api/status")).status == 200
    stack.executor.kill()
    while await until_ready_is(503) != "no executor\n":
        pass
    assert (await nobody.request("GET", "/healthz")).status == 200
    assert (await nobody.request("GET", "/metrics")).status == 403
    samples = await scrape(ada)
    assert total(samples, "sharedkernel_device_up") == 0
    assert total(samples, "http_request_duration_seconds_count") > 0


async def test_the_audit_log_says_who_did_what_to_whose_session(stack: Stack) -> None:
    """Refusals and wrong tokens too; never what was asked only to be read, and no token.

    Whose kernel it is that somebody starts, replaces or ends by way of `/api/sessions`, too.
    """
    ada, grace, linus = map(stack.client, ("ada", "grace", "linus"))
    before = len(audit(stack))
    kernel = await grace.start()
    async with grace.attach(kernel) as channels:
        await channels.run("1")
    await ada.request("POST", f"/api/kernels/{kernel}/interrupt")
    await linus.request("DELETE", f"/api/kernels/{kernel}")
    await grace.request("PUT", "/sharedkernel/api/quotas", {"users": {}})
    wrong = "sk-feedbeef-" + "1" * 64
    for _ in range(3):
        await Client(stack.gateway_url, wrong).request("GET", "/api/kernels")
    await ada.end(kernel)
    entries = audit(stack)[before:]
    keys = ("user", "action", "owner", "status")
    assert [tuple(entry.get(key) for key in keys) for entry in entries if entry.get("session") == kernel] == [
        ("grace", "start session", "grace", 201),
        ("grace", "attach to session", "grace", None),
        ("ada", "interrupt session", "grace", 204),
        ("linus", "end session", "grace", 404),
        ("ada", "end session", "grace", 204),
    ]
    assert [(entry["user"], entry["status"]) for entry in entries if entry["action"] == "change quotas"] == [
        ("grace", 403)
    ]
    assert [entry["address"] for entry in entries if entry["action"] == "refuse token"] == ["127.0.0.1"]
    text = json.dumps(entries)
    assert stack.token("grace").split("-")[2] not in text
    assert "1" * 64 not in text
    body = {"path": "a.ipynb", "type": "notebook", "name": "", "kernel": {"name": "shared-gpu"}}
    started = (await grace.request("POST", "/api/sessions", body)).body
    path = f"/api/sessions/{started['id']}"
    assert (await linus.request("DELETE", path)).status == 404
    changed = (await grace.request("PATCH", path, {"kernel": {"name": "shared-gpu"}})).body
    assert (await ada.request("DELETE", path)).status == 204
    first, second = started["kernel"]["id"], changed["kernel"]["id"]
    keys = ("user", "action", "session", "owner", "replaced", "status")
    assert [tuple(map(entry.get, keys)) for entry in audit(stack)[before:] if "notebook" in entry["action"]] == [
        ("grace", "start notebook session", first, "grace", None, 201),
        ("linus", "end notebook session", first, "grace", None, 404),
        ("grace", "change notebook session", second, "grace", first, 200),
        ("ada", "end notebook session", second, "grace", None, 204),
    ]


async def test_the_audit_log_says_whose_limits_changed_and_which_notebook_it_was(stack: Stack) -> None:
    """From what to what, as far as that is one value; a session by its notebook's name."""
    before = len(audit(stack))

    ada, grace = stack.client("ada"), stack.client("grace")
    put = {"users": {"grace": {"memory": "64MiB"}}, "default": {"share": 2}}
    assert (await ada.request("PUT", "/sharedkernel/api/quotas", put)).status == 200
    again = {"users": {"grace": {"memory": "96MiB"}}}
    assert (await ada.request("PUT", "/sharedkernel/api/quotas", again)).status == 200
    keyed = await ada.request("DELETE", "/sharedkernel/api/quotas?user=grace&key=priority")
    assert keyed.body["users"]["grace"]["memory"]["value"] == "96MiB"
    for query in ("key=memory", "user=grace&key=memroy", "user=grace&key="):
        assert (await ada.request("DELETE", f"/sharedkernel/api/quotas?{query}")).status == 400
    assert (await ada.request("DELETE", "/sharedkernel/api/quotas?user=grace")).status == 200
    assert (await ada.request("DELETE", "/sharedkernel/api/quotas")).status == 200
    kernel = await grace.start(KERNEL_NOTEBOOK="work/train.ipynb")
    assert (await ada.request("DELETE", f"/api/kernels/{kernel}")).status == 204
    entries = audit(stack)[before:]
    changed = [entry["changes"] for entry in entries if entry["action"] == "change quotas"]
    assert changed[0][0] == "the default: share 2.0"
    assert changed[0][1].startswith("grace: memory ")
    assert changed[0][1].endswith(" to 64MiB")
    assert changed[1] == ["grace: memory 64MiB to 96MiB"]
    assert [entry["of"] for entry in entries if "of" in entry] == ["grace: priority", "grace", "everybody"]
    assert {entry["notebook"] for entry in entries if entry["action"] in ("start session", "end session")} == {
        "work/train.ipynb"
    }


@pytest.fixture
def changed(stack: Stack) -> Iterator[Stack]:
    """Return the stack with a stopped gateway, set to look at connections often; it is as it was afterwards."""
    old = stack.config_path.read_text()
    stack.gateway.stop()
    stack.config_path.write_text(f"{old}\nc.SharedKernelGateway.revocation_seconds = 0.1\n")
    yield stack
    stack.gateway.stop()
    stack.config_path.write_text(old)
    stack.restart_gateway()


async def a_damaged_file_takes_no_rights_away(stack: Stack, file: TokenFile, user: Client) -> None:
    """Show that nobody is taken for somebody whose token was removed, and return once connections were looked at."""
    tokens = file.path.read_text()
    file.path.write_text(tokens[:-10])
    try:
        answer = await user.request("GET", "/api/kernels")
        assert (answer.status, answer.body["reason"]) == (503, "identity_unavailable")
        seen = len(stack.gateway_log())
        while "no token can be checked" not in stack.gateway_log()[seen:]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    finally:
        file.path.write_text(tokens)
    assert (await user.request("GET", "/api/kernels")).status == 200


async def test_connections_are_limited_by_user_and_end_with_their_token(changed: Stack) -> None:
    """Requests in parallel cannot slip past; a removed token's connection is closed, other users' go on.

    A cell too many is refused with an error in its notebook. Each line of the log is JSON.
    """
    with changed.config_path.open("a") as config:
        config.write("c.SharedKernelGateway.max_websockets = 3\nc.SharedKernelGateway.log_style = 'json'\n")
        config.write("c.SessionWebsocket.max_queued_cells = 3\n")
    before = len(changed.gateway_log())
    changed.restart_gateway()
    file = TokenFile(changed.directory / "tokens.json")
    mary, grace = Client(changed.gateway_url, file.add("mary")), changed.client("grace")
    kernel, other = await mary.start(), await grace.start()
    opened = await asyncio.gather(*(mary.attach(kernel).open() for _ in range(6)), return_exceptions=True)
    refused = [answer for answer in opened if isinstance(answer, HTTPClientError)]
    assert [answer.code for answer in refused] == [429] * 3
    assert json.loads(refused[0].response.body)["reason"] == "too_many_websockets"
    async with grace.attach(other) as channels:
        await a_damaged_file_takes_no_rights_away(changed, file, grace)
        assert (await channels.run("1 + 1"))["text"] == "2"
        # Tokens of mary that were made for other tests must stay.
        tokens = json.loads(file.path.read_text())
        del tokens["tokens"][mary.token.split("-")[1]]
        file.path.write_text(json.dumps(tokens))
        for answer in opened:
            if not isinstance(answer, BaseException):
                while await answer.receive() is not None:
                    pass
                assert answer.socket.close_code == 1008
                answer.socket.close()
        assert (await channels.run("2 + 2"))["text"] == "4"
        await a_cell_too_many_is_refused(channels)
    await grace.request("POST", f"/api/kernels/{other}/restart")
    lines = [line for line in changed.gateway_log()[before:].splitlines() if not line.startswith("Serving on")]
    restarted = next(entry for entry in map(json.loads, lines) if "restarted" in entry["message"])
    assert (restarted["user"], restarted["session"], restarted["level"]) == ("grace", other, "info")


async def a_cell_too_many_is_refused(channels: Channels) -> None:
    """Show that the queue of a session is bounded."""
    cell = {"silent": False, "stop_on_error": False}
    await channels.send("execute_request", {"code": "input()", "allow_stdin": True, **cell})
    await channels.until("input_request")
    for code in ("a = 1", "a += 1", "a += 1"):
        await channels.send("execute_request", {"code": code, **cell})
    assert (await channels.until("error"))[-1]["content"]["evalue"].startswith("this session has 3 cells to run")
    await channels.send("input_reply", {"value": ""}, "stdin")
    await channels.until("execute_reply", execution_count=5)  # the second cell that was accepted behind the input
    assert (await channels.run("a"))["text"] == "2"


def test_what_a_reload_cannot_change_is_named(changed: Stack) -> None:
    """Whether it is set, set otherwise or taken out; what the command line sets, the file does not change anyhow.

    Who was named there an admin stays one.
    """
    written = changed.config_path.read_text()
    changed.config_path.write_text(f"{written}\nc.SessionKernels.backlog_bytes = 1\nc.ServerApp.base_url = '/'\n")
    arguments = changed.gateway.arguments
    options = {"max_websockets": "50", "admins": "linus"}
    changed.gateway.arguments = [*arguments, *(f"--SharedKernelGateway.{name}={options[name]}" for name in options)]
    try:
        changed.restart_gateway()

        def named(config: str) -> list[str]:
            seen = len(changed.gateway_log())
            assert "was read again" in changed.reload(config)
            changed.reload("c.SharedKernelGateway.quotas = 1")  # by whose fault all before it was said
            said = [line for line in changed.gateway_log()[seen:].splitlines() if "until you restart" in line]
            return [name for line in said for name in line.partition("(sessions run on): ")[2].split(", ")]

        usual = changed.config_path.read_text()
        assert named(f"{usual}\nc.SharedKernelGateway.quotas = {{}}\n") == []
        lines = (
            "c.SessionKernels.backlog_bytes = 2",
            "c.SharedKernelGateway.audit_file = 'none'",
            "c.SharedKernelGateway.max_websockets = 7",
            "c.SharedKernelGateway.placement = 'horus'",
        )
        names = ["c.ServerApp.base_url", "c.SessionKernels.backlog_bytes", "c.SharedKernelGateway.audit_file"]
        for _ in range(2):  # they wait still
            assert named("\n".join((written, *lines))) == names
        assert named(usual) == []
        asked = [changed.client(name).request("PUT", "/sharedkernel/api/quotas", {}) for name in ("linus", "grace")]
        assert [asyncio.run(each).status for each in asked] == [200, 403]
    finally:
        changed.gateway.arguments = arguments


async def test_who_is_no_admin_any_more_is_hung_up_on(changed: Stack) -> None:
    """A reload takes rights from connections, too."""
    written = changed.config_path.read_text()
    changed.restart_gateway()
    ada, grace = changed.client("ada"), changed.client("grace")
    kernel = await grace.start()
    async with ada.attach(kernel) as admin, grace.attach(kernel) as own:
        assert (await admin.run("1 + 1"))["text"] == "2"
        assert "was read again" in changed.reload(f"{written}\nc.SharedKernelGateway.admins = set()\n")
        while await admin.receive() is not None:
            pass
        assert (admin.socket.close_code, admin.socket.close_reason) == (1008, "its user is no admin any more")
        assert (await own.run("2 + 2"))["text"] == "4"
