"""What a front costs in a cluster of many devices: placement, summaries, its memory, and each message.

The front is a real process, and the hosts are stubs in this one: they register, and answer each message with the same.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import ssl
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.web import Application
from tornado.websocket import WebSocketClientConnection, websocket_connect

from benchmarks.stack.results import Conditions, Result, Target, brief, percentile
from benchmarks.stub_hosts import UUID_REST, EchoHandler, StubStatusHandler, make_status, make_summaries
from sharedkernel.gateway.auth.tickets import TicketKey, host_prefix
from sharedkernel.gateway.auth.tokens import TokenFile
from sharedkernel.gateway.hosts.registration import keep_registered
from sharedkernel.gateway.hosts.registry import ClusterHosts, choose_device
from sharedkernel.gateway.hosts.summary import HostSummary
from sharedkernel.gateway.tls import peer_context
from sharedkernel.local_stack import free_port
from sharedkernel.scheduling.placement import PlacementName
from sharedkernel.services import Service

_MESSAGE = bytes(1024)
#: messages of one websocket in a block, websockets at a time, and placements by each rule
_BLOCK, _WEBSOCKETS, _PLACEMENTS = 500, 20, 500


def run(conditions: Conditions) -> list[Result]:
    """Run the benchmark `cluster`."""
    with tempfile.TemporaryDirectory(prefix="skc-") as directory:
        return asyncio.run(_measure(conditions, Path(directory)))


async def _measure(conditions: Conditions, directory: Path) -> list[Result]:
    summaries = make_summaries(conditions.devices, conditions.sessions, "http://127.0.0.1")
    shape = f"{conditions.devices} devices with {conditions.sessions} sessions each, on {len(summaries)} hosts"
    conditions.say("placing sessions by each rule")
    results = [_summary_size(summaries, shape), *_placements(summaries, directory, shape)]  # which adds users
    async with _running_front(conditions, directory / "plain", summaries, None) as front:
        uss = front.process.memory_full_info().uss
        how = f"memory of its own of a front that knows {shape}, without a websocket."
        results.append(Result(metric="front_bytes", value=uss, unit="bytes", target=Target("<=", 200e6), how=how))
        results += await _status_cost(front, shape)
        results.append(await _message_cost(conditions, front))
        results.append(await _added_time(conditions, front))
    if (certificate := _make_certificate(directory)) is None:
        conditions.say("there is no `openssl` here, so nothing is measured with encryption")
        return results
    async with _running_front(conditions, directory / "encrypted", summaries, certificate) as front:
        return [*results, await _message_cost(conditions, front)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Front:
    """A front that knows stub hosts."""

    process: psutil.Process
    url: str
    #: URL of all stub hosts
    stub: str
    token: str
    #: kernels, each on another host
    kernels: list[str]
    #: of front and stub hosts, if they encrypt
    certificate: _Certificate | None


@dataclass(frozen=True, slots=True)
class _Certificate:
    """A certificate for 127.0.0.1, which has signed itself, and its key."""

    certfile: str
    keyfile: str

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a server with it."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certfile, self.keyfile)
        return context


def _make_certificate(directory: Path) -> _Certificate | None:
    """Return a new certificate; None where there is no ``openssl``."""
    if (openssl := shutil.which("openssl")) is None:
        return None
    made = _Certificate(str(directory / "crt.pem"), str(directory / "key.pem"))
    command = [
        openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", made.keyfile, "-out", made.certfile,
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return made


@asynccontextmanager
async def _running_front(
    conditions: Conditions, directory: Path, summaries: Sequence[HostSummary], certificate: _Certificate | None
) -> AsyncIterator[_Front]:
    """Run a front and stub hosts with these *summaries*; connections are encrypted if there is a *certificate*."""
    status = {"document": msgspec.json.encode(make_status(conditions.sessions))}
    routes: list[Any] = [
        (r"/api/kernels/.*/channels", EchoHandler),
        ("/sharedkernel/api/status", StubStatusHandler, status),
    ]
    application, port = Application(routes), free_port()
    server = HTTPServer(application, ssl_options=None if certificate is None else certificate.server_context())
    server.listen(port, "127.0.0.1")
    stub = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    conditions.say(f"registering {len(summaries)} hosts at a front{' with encryption' if certificate else ''}")
    secret = secrets.token_hex(32)
    front, url, token = _front(directory, secret, certificate)
    context = peer_context(certificate.certfile if certificate else "", "", "")
    async with AsyncExitStack() as exits:
        exits.callback(server.stop)
        exits.callback(front.stop)
        front.start()
        await asyncio.to_thread(front.wait_until_ready)
        for summary in summaries:
            here = msgspec.structs.replace(summary, address=stub)
            key = TicketKey.of_host(secret.encode(), summary.name)
            task = asyncio.create_task(keep_registered(url, key, partial(_answer, here), context))
            exits.callback(task.cancel)
        process = await asyncio.to_thread(_wait_for_hosts, front, url, token, len(summaries), context)
        kernels = [host_prefix(summary.name) + UUID_REST for summary in summaries]
        yield _Front(process=process, url=url, stub=stub, token=token, kernels=kernels, certificate=certificate)


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


def _front(directory: Path, secret: str, certificate: _Certificate | None) -> tuple[Service, str, str]:
    """Return a front that is not started yet, its URL and a token."""
    directory.mkdir()
    key, port = directory / "cluster.key", free_port()
    key.touch(mode=0o600)
    key.write_text(secret)
    (directory / "run").mkdir(mode=0o700)
    token = TokenFile(directory / "tokens.json").add("user")
    config = directory / "config.py"
    config.write_text("c.SharedKernelGateway.admins = {'user'}\n")
    url = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    command = [
        "gateway", "--front", "--ip", "127.0.0.1", "--port", str(port), "--config", str(config),
        "--runtime-dir", str(directory / "run"), "--cluster-key", str(key),
        "--identity", "tokens", "--tokens-file", str(directory / "tokens.json"),
    ]  # fmt: skip
    if certificate is not None:
        command += ["--certfile", certificate.certfile, "--keyfile", certificate.keyfile]
        config.write_text(f"{config.read_text()}c.SharedKernelGateway.cluster_ca = {certificate.certfile!r}\n")
    is_ready = partial(_is_serving, url, peer_context(certificate.certfile if certificate else "", "", ""))
    service = Service(command, log_path=directory / "front.log", is_ready=is_ready, scratch=directory)
    return service, url, token


def _is_serving(url: str, context: ssl.SSLContext) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=10, context=context):
            return True
    except OSError:
        return False


def _num_answering(url: str, token: str, context: ssl.SSLContext) -> int:
    request = urllib.request.Request(f"{url}/sharedkernel/api/hosts", headers={"Authorization": f"token {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return sum(host["answering"] for host in msgspec.json.decode(answer.read())["hosts"])
    except OSError:
        return 0


def _wait_for_hosts(front: Service, url: str, token: str, count: int, context: ssl.SSLContext) -> psutil.Process:
    for _ in range(600):
        if _num_answering(url, token, context) == count:
            break
        time.sleep(0.1)
    assert front.process is not None
    return psutil.Process(front.process.pid)


async def _status_cost(front: _Front, shape: str) -> list[Result]:
    seconds, size = [], 0
    for _ in range(3):
        began = time.perf_counter()
        request = HTTPRequest(
            f"{front.url}/sharedkernel/api/status",
            headers={"Authorization": f"token {front.token}"},
            request_timeout=60,
        )
        size = len((await AsyncHTTPClient().fetch(request)).body)
        seconds.append(time.perf_counter() - began)
    how = f"the front's status document, for which it asks all hosts, stub hosts in one process: {shape}; median of 3."
    return [
        Result(metric="status_bytes", value=size, unit="bytes", target=Target("<=", 1e6), how=how),
        Result(
            metric="status_seconds", value=statistics.median(seconds), unit="seconds", target=Target("<=", 1.0), how=how
        ),
    ]


async def _message_cost(conditions: Conditions, front: _Front) -> Result:
    blocks = conditions.effort.runs(8)
    async with AsyncExitStack() as exits:
        sockets = [
            await _open(exits, front, front.url, front.kernels[number % len(front.kernels)])
            for number in range(_WEBSOCKETS)
        ]
        await asyncio.gather(*(_exchange(each, 20) for each in sockets))
        conditions.say(f"{_WEBSOCKETS * blocks * (_BLOCK // 4)} round trips of {_WEBSOCKETS} websockets")
        before = _processor_seconds(front.process)
        for _ in range(blocks):
            await asyncio.gather(*(_exchange(each, _BLOCK // 4) for each in sockets))
        used = _processor_seconds(front.process) - before
    count = 2 * blocks * _WEBSOCKETS * (_BLOCK // 4)
    return Result(
        metric="message_seconds" if front.certificate is None else "encrypted_message_seconds",
        value=used / count,
        unit="seconds",
        target=Target("<=", 30e-6 if front.certificate is None else 60e-6),
        how=f"{brief(used / count)} of the front's processor time for each of {count} messages of 1 KiB"
        f"{', encrypted on both sides' if front.certificate else ''}, {_WEBSOCKETS} websockets at a time.",
    )


async def _added_time(conditions: Conditions, front: _Front) -> Result:
    blocks = conditions.effort.runs(8)
    trips: dict[str, list[float]] = {front.url: [], front.stub: []}
    async with AsyncExitStack() as exits:
        sockets = {way: await _open(exits, front, way, front.kernels[0]) for way in trips}
        for each in sockets.values():
            await _exchange(each, 20)
        for block in range(blocks):
            conditions.say(f"{_BLOCK} messages by each way, {block + 1} of {blocks}")
            for way, seconds in trips.items():
                seconds.append(percentile(await _exchange(sockets[way], _BLOCK), 50))
    through, direct = statistics.median(trips[front.url]), statistics.median(trips[front.stub])
    return Result(
        metric="added_p50_seconds",
        value=statistics.median(a - b for a, b in zip(trips[front.url], trips[front.stub], strict=True)),
        unit="seconds",
        target=Target("<=", 1e-3),
        how=f"round trip of 1 KiB: {brief(through)} through the front, {brief(direct)} straight to the stub host; "
        f"medians of {blocks} blocks of {_BLOCK}.",
    )


async def _open(exits: AsyncExitStack, front: _Front, url: str, kernel: str) -> WebSocketClientConnection:
    request = HTTPRequest(
        f"ws{url.removeprefix('http')}/api/kernels/{kernel}/channels",
        headers={"Authorization": f"token {front.token}"},
        request_timeout=60,
        ca_certs=None if front.certificate is None else front.certificate.certfile,
    )
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
