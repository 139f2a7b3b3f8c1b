"""What a front costs in a cluster of many devices: placement, summaries, its memory, and each message.

The front is a real process, and the hosts are stubs in this one: they register, and answer each message with the same.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
from tornado.httpclient import HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.web import Application
from tornado.websocket import WebSocketClientConnection, WebSocketHandler, websocket_connect

from sharedkernel.bench.stack.results import Conditions, Result, Target, brief, percentile
from sharedkernel.gateway.auth.tickets import TicketKey, host_prefix
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.cluster.front import choose_device
from sharedkernel.gateway.cluster.hosts import ClusterHosts
from sharedkernel.gateway.cluster.registration import HostRegistration
from sharedkernel.gateway.cluster.summary import DeviceSummary, HostSummary, UserSummary
from sharedkernel.gateway.tls import peer_context
from sharedkernel.local_stack import Service, free_port
from sharedkernel.scheduling.placement import PlacementName

#: devices of a host, and users for each of its devices
_DEVICES_OF_HOST, _USERS_OF_DEVICE = 8, 10
_MESSAGE = bytes(1024)
#: messages of one websocket in a block, websockets at a time, and placements by each rule
_BLOCK, _WEBSOCKETS, _PLACEMENTS = 500, 20, 500
_UUID_REST = "-1111-4111-8111-111111111111"


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `cluster`."""
    with tempfile.TemporaryDirectory(prefix="skc-") as directory:
        return asyncio.run(_measure(conditions, Path(directory)))


class _Echo(WebSocketHandler):
    """A stub host's websocket."""

    def on_message(self, message: str | bytes) -> None:
        self.write_message(message, binary=True)


def make_summaries(devices: int, sessions: int, address: str) -> list[HostSummary]:
    """Return the summaries of hosts of eight devices.

    Parameters
    ----------
    devices
        Number of all devices.
    sessions
        Number of sessions on each.
    address
        URL of all hosts.
    """
    hosts = []
    for host in range(-(-devices // _DEVICES_OF_HOST)):
        count = min(_DEVICES_OF_HOST, devices - host * _DEVICES_OF_HOST)
        hosts.append(
            HostSummary(
                name=f"host{host}",
                address=address,
                version="1.0",
                devices=[
                    DeviceSummary(
                        name=f"cuda:{number}", model="NVIDIA H100 80GB HBM3", capacity_bytes=80 << 30,
                        free_bytes=(80 << 30) * (number + 1) // 10, active=sessions // (2 + number % 3),
                        utilisation=round(0.37 * sessions, 2),
                    )
                    for number in range(count)
                ],
                users={
                    f"student-{host}-{user}": UserSummary(sessions=-(-sessions // _USERS_OF_DEVICE))
                    for user in range(count * min(_USERS_OF_DEVICE, sessions))
                },
            )
        )  # fmt: skip
    return hosts


async def _measure(conditions: Conditions, directory: Path) -> list[Result]:
    server, port = HTTPServer(Application([(r"/api/kernels/.*/channels", _Echo)])), free_port()
    server.listen(port, "127.0.0.1")
    stub = f"http://127.0.0.1:{port}"
    summaries = make_summaries(conditions.devices, conditions.sessions, stub)
    shape = f"{conditions.devices} devices with {conditions.sessions} sessions each, on {len(summaries)} hosts"
    conditions.say("placing sessions by each rule")
    results = [_summary_size(summaries, shape), *_placements(summaries, directory, shape)]  # which adds users

    conditions.say(f"registering {len(summaries)} hosts at a front")
    secret = secrets.token_hex(32)
    front, url, token = _front(directory, secret)
    async with AsyncExitStack() as exits:
        exits.callback(server.stop)
        exits.callback(front.stop)
        front.start()
        await asyncio.to_thread(front.wait_until_ready)
        context = peer_context("", "", "")
        for summary in summaries:
            registration = HostRegistration(
                [url], TicketKey.of_host(secret.encode(), summary.name), partial(_answer, summary), context
            )
            task = asyncio.create_task(registration.keep())
            exits.callback(task.cancel)
        process = await asyncio.to_thread(_wait_for_hosts, front, url, token, len(summaries))
        uss = process.memory_full_info().uss
        how = f"memory of its own of a front that knows {shape}, without a websocket."
        results.append(Result(metric="front_bytes", value=uss, unit="bytes", target=Target("<=", 200e6), how=how))
        ids = [host_prefix(summary.name) + _UUID_REST for summary in summaries]
        return [*results, *await _messages(conditions, process, url, stub, token, ids)]


async def _answer(summary: HostSummary) -> HostSummary:
    return summary


def _placements(summaries: Sequence[HostSummary], directory: Path, shape: str) -> list[Result]:
    hosts = ClusterHosts(directory / "hosts.json")
    for summary in summaries:
        hosts.register(summary)
    seconds: dict[str, list[float]] = {rule: [] for rule in PlacementName}
    for number in range(_PLACEMENTS):
        for rule, measured in seconds.items():
            began = time.perf_counter()
            choose_device(rule, hosts.all(), f"user{number}")
            measured.append(time.perf_counter() - began)
    slowest = max(seconds, key=lambda rule: statistics.mean(seconds[rule]))
    mean, p95 = statistics.mean(seconds[slowest]), percentile(seconds[slowest], 95)
    how = f"decisions by {slowest}, the slowest of the four rules, among {shape}; {_PLACEMENTS} by each rule."
    return [
        Result(metric="placements_per_second", value=1 / mean, unit="ratio", target=Target(">=", 300), how=how),
        Result(metric="placement_p95_seconds", value=p95, unit="seconds", target=Target("<=", 0.01), how=how),
    ]


def _summary_size(summaries: Sequence[HostSummary], shape: str) -> Result:
    return Result(
        metric="summary_bytes",
        value=sum(len(msgspec.msgpack.encode(summary)) for summary in summaries),
        unit="bytes",
        target=Target("<=", 300e3),
        how=f"what all hosts send to a front every 2 s: {shape}, {sum(len(each.users) for each in summaries)} users.",
    )


def _front(directory: Path, secret: str) -> tuple[Service, str, str]:
    """Return a front that is not started yet, its URL and a token."""
    key, port = directory / "cluster.key", free_port()
    key.touch(mode=0o600)
    key.write_text(secret)
    (directory / "run").mkdir(mode=0o700)
    token = TokenFile(directory / "tokens.json").add("user")
    config = directory / "config.py"
    config.write_text("c.SharedKernelGateway.admins = {'user'}\n")
    url = f"http://127.0.0.1:{port}"
    command = [
        "gateway", "--front", "--ip", "127.0.0.1", "--port", str(port), "--config", str(config),
        "--runtime-dir", str(directory / "run"), "--cluster-key", str(key),
        "--identity", "tokens", "--tokens-file", str(directory / "tokens.json"),
    ]  # fmt: skip
    is_ready = partial(_is_serving, url)
    service = Service(command, log_path=directory / "front.log", is_ready=is_ready, scratch=directory)
    return service, url, token


def _is_serving(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=10):
            return True
    except OSError:
        return False


def _num_answering(url: str, token: str) -> int:
    request = urllib.request.Request(f"{url}/sharedkernel/api/hosts", headers={"Authorization": f"token {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return sum(host["answering"] for host in msgspec.json.decode(answer.read())["hosts"])
    except OSError:
        return 0


def _wait_for_hosts(front: Service, url: str, token: str, count: int) -> psutil.Process:
    for _ in range(600):
        if _num_answering(url, token) == count:
            break
        time.sleep(0.1)
    assert front.process is not None
    return psutil.Process(front.process.pid)


async def _messages(
    conditions: Conditions, process: psutil.Process, url: str, stub: str, token: str, ids: Sequence[str]
) -> list[Result]:
    blocks = conditions.effort.runs(8)
    trips: dict[str, list[float]] = {url: [], stub: []}
    async with AsyncExitStack() as exits:
        sockets = {
            way: [await _open(exits, way, token, ids[n % len(ids)]) for n in range(_WEBSOCKETS)] for way in trips
        }
        for each in sockets[url]:
            await _exchange(each, 20)
        for block in range(blocks):
            conditions.say(f"{_BLOCK} messages by each way, {block + 1} of {blocks}")
            for way, seconds in trips.items():
                seconds.append(percentile(await _exchange(sockets[way][0], _BLOCK), 50))
        before = _processor_seconds(process)
        for _ in range(blocks):
            await asyncio.gather(*(_exchange(each, _BLOCK // 4) for each in sockets[url]))
        used = _processor_seconds(process) - before
    count = 2 * blocks * _WEBSOCKETS * (_BLOCK // 4)
    through, direct = statistics.median(trips[url]), statistics.median(trips[stub])
    added = statistics.median(a - b for a, b in zip(trips[url], trips[stub], strict=True))
    return [
        Result(
            metric="message_seconds",
            value=used / count,
            unit="seconds",
            target=Target("<=", 30e-6),
            how=f"{brief(used / count)} of the front's processor time for each of {count} messages of 1 KiB, "
            f"{_WEBSOCKETS} websockets at a time.",
        ),
        Result(
            metric="added_p50_seconds",
            value=added,
            unit="seconds",
            target=Target("<=", 1e-3),
            how=f"round trip of 1 KiB: {brief(through)} through the front, {brief(direct)} straight to the stub host; "
            f"medians of {blocks} blocks of {_BLOCK}.",
        ),
    ]


async def _open(exits: AsyncExitStack, url: str, token: str, kernel: str) -> WebSocketClientConnection:
    address = f"ws{url.removeprefix('http')}/api/kernels/{kernel}/channels"
    request = HTTPRequest(address, headers={"Authorization": f"token {token}"}, request_timeout=60)
    socket: Any = await websocket_connect(request)
    exits.callback(socket.close)
    return socket  # type: ignore[no-any-return]


async def _exchange(socket: WebSocketClientConnection, count: int) -> list[float]:
    """Return the seconds of *count* round trips, one after the other."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        await socket.write_message(_MESSAGE, binary=True)
        await socket.read_message()
        seconds.append(time.perf_counter() - began)
    return seconds


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
