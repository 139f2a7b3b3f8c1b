"""Forwarded ports: bytes of real programs pass unchanged, and only to those whose programs they are."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from sharedkernel.gateway.app import SharedKernelGateway
from sharedkernel.gateway.http.ports import MOST_CONNECTIONS, UserPorts
from sharedkernel.ipc.seqpacket import allow_many_descriptors
from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import execute, until
from tests.gateway.http.port_programs import ECHO, NEVER, SUM, connect, executors_of, forwarded, refusal, start
from tests.gateway.page.browser import Browser
from tests.gateway.test_command import in_process
from tests.warm_stack import WarmStack

PORTS = "/sharedkernel/api/ports"

#: a page, a websocket and a stream, as gradio, Dash and TensorBoard have them
_WEB = """if True:
    import asyncio, socket
    from tornado import web, websocket, httpserver

    class Page(web.RequestHandler):
        def get(self):
            self.write("made on " + self.request.host)

    class Stream(web.RequestHandler):
        async def get(self):
            self.set_header("Content-Type", "text/event-stream")
            for number in range(3):
                self.write(f"data: {number}\\n\\n")
                await self.flush()

    class Socket(websocket.WebSocketHandler):
        def on_message(self, message):
            self.write_message(message[::-1])

    async def main():
        routes = [("/", Page), ("/stream", Stream), ("/socket", Socket)]
        listener = socket.socket(fileno=0)
        listener.setblocking(False)
        httpserver.HTTPServer(web.Application(routes)).add_sockets([listener])
        await asyncio.Event().wait()

    asyncio.run(main())
"""
_MEBIBYTE = 1 << 20


async def listed(client: Client) -> list[tuple[int, str, str]]:
    found = (await client.request("GET", PORTS)).body["ports"]
    return [(entry["port"], entry["program"], entry["session"]) for entry in found]


async def test_pages_websockets_and_streams_work_as_they_stand(stack: Stack) -> None:
    """They are listed for their user alone, by program and notebook, and the program sees the user's own address."""
    ada, grace = stack.client("ada"), stack.client("grace")
    kernel = await ada.start(KERNEL_NOTEBOOK="plots/live.ipynb")
    await grace.start()
    port = await start(ada, kernel, _WEB)
    ((found, program, session),) = await listed(ada)
    assert (found, program[:6], session) == (port, "python", kernel)
    assert (await ada.request("GET", PORTS)).body["ports"][0]["notebook"] == "plots/live.ipynb"
    assert await listed(grace) == []
    async with forwarded(ada, port) as forward:
        here = f"127.0.0.1:{forward.local_port}"
        assert forward.local_port != port  # it is taken on this machine, which is the host
        assert (await AsyncHTTPClient().fetch(f"http://{here}/")).body.decode() == f"made on {here}"
        events = (await AsyncHTTPClient().fetch(f"http://{here}/stream")).body
        assert events == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        websocket = await websocket_connect(f"ws://{here}/socket")
        await websocket.write_message("tensor")
        assert await websocket.read_message() == "rosnet"
        websocket.close()


async def test_a_thread_of_the_notebook_is_a_program_too(stack: Stack) -> None:
    """As gradio's, which serves from within the kernel; also where it listens for both versions of IP."""
    ada = stack.client("ada")
    kernel = await ada.start()
    code = """if True:
        import http.server, socket, threading
        class Server(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6
        server = Server(("::", 0), http.server.SimpleHTTPRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_port)
    """
    port = int(await execute(ada, kernel, code))
    assert await listed(ada) == [(port, "notebook", kernel)]
    async with forwarded(ada, port) as forward:
        answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{forward.local_port}/")
        assert b"Directory listing" in answer.body


async def test_neither_side_is_read_faster_than_the_other_takes(stack: Stack, tmp_path: Path) -> None:
    """50 MB arrive whole when the program reads at last; until then most of them stay where they are."""
    ada, go = stack.client("ada"), tmp_path / "go"
    port = await start(ada, await ada.start(), SUM.format(go=str(go)))
    data = random.Random(1).randbytes(50 * _MEBIBYTE)
    process = stack.gateway.process
    assert process is not None
    gateway = psutil.Process(process.pid)
    before = gateway.memory_info().rss
    async with forwarded(ada, port) as forward:
        loop = asyncio.get_running_loop()
        with socket.create_connection(("127.0.0.1", forward.local_port)) as connection:
            connection.setblocking(False)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < len(data):  # until a second passes without one being taken
                    async with asyncio.timeout(1.0):
                        await loop.sock_sendall(connection, data[sent : sent + 65536])
                    sent += 65536
            assert sent < 40 * _MEBIBYTE
            held = gateway.memory_info().rss - before
            go.touch()
            # the last piece may have been sent in part: a connection of its own shows that all arrives
        reader, writer = await connect(forward)
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        assert (await reader.read()).decode() == hashlib.sha256(data).hexdigest()
        writer.close()
    assert held < 16 * _MEBIBYTE


@pytest.fixture
def often_pinging() -> Iterator[Stack]:
    config = 'c.ServerApp.tornado_settings = {"ws_ping_interval": 1000}'
    with WarmStack(users=["ada"], capacity="1GiB", config=config) as stack:
        yield stack  # type: ignore[misc]


@pytest.mark.heavy
async def test_a_client_that_goes_away_leaves_nothing_behind(often_pinging: Stack, tmp_path: Path) -> None:
    """By the second ping, however much of what it has sent the program has not taken; one that stays is pinged on."""
    stack = often_pinging
    ada = Client(stack.gateway_url, stack.token("ada"))
    kernel = await ada.start()
    port = await start(ada, kernel, SUM.format(go=str(tmp_path / "never")))
    process = stack.gateway.process
    assert process is not None
    gateway = psutil.Process(process.pid)

    async def is_connected() -> bool:
        return any(each.raddr and each.raddr.port == port for each in gateway.net_connections("tcp"))

    async def is_free() -> bool:
        return not await is_connected()

    url = stack.gateway_url.replace("http", "ws") + f"{PORTS}/{port}"
    client = await websocket_connect(HTTPRequest(url, headers=ada.headers))
    assert await is_connected()
    for _ in range(320):
        client.write_message(bytes(65536), binary=True)
    stream = client.protocol.stream
    assert stream is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):  # until a second passes without all being taken
            await stream.write(b"")
    stream.close()
    client.close()
    await asyncio.wait_for(until(is_free), 60)
    pinged = asyncio.Queue[bytes]()
    staying = await websocket_connect(
        HTTPRequest(stack.gateway_url.replace("http", "ws") + "/sharedkernel/api/events", headers=ada.headers),
        on_message_callback=lambda message: None,
    )
    staying.on_ping = pinged.put_nowait  # type: ignore[method-assign]
    for _ in range(3):
        await asyncio.wait_for(pinged.get(), 60)
    staying.close()
    url = stack.gateway_url.replace("http", "ws") + f"{PORTS}/{await start(ada, kernel, ECHO)}"
    large = await websocket_connect(HTTPRequest(url, headers=ada.headers))
    # the head of a frame alone: what a server that hangs up has not read may cost its client the reason
    await large.protocol.stream.write(struct.pack("!BBQ4x", 0x82, 0xFF, 2 * _MEBIBYTE))
    assert await large.read_message() is None
    assert large.close_code == 1009  # RFC 6455: too big
    large.close()


async def test_fifty_megabytes_pass_each_way(stack: Stack) -> None:
    """Unchanged and in order, in little memory of the gateway's."""
    ada = stack.client("ada")
    port = await start(ada, await ada.start(), ECHO)
    data = random.Random(2).randbytes(50 * _MEBIBYTE)
    process = stack.gateway.process
    assert process is not None
    before = psutil.Process(process.pid).memory_info().rss
    async with forwarded(ada, port) as forward:
        reader, writer = await connect(forward)

        async def send() -> None:
            for place in range(0, len(data), 65536):
                writer.write(data[place : place + 65536])
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        digest = hashlib.sha256()
        while piece := await reader.read(65536):
            digest.update(piece)
        await sending
        writer.close()
    assert digest.digest() == hashlib.sha256(data).digest()
    assert psutil.Process(process.pid).memory_info().rss - before < 24 * _MEBIBYTE


@pytest.mark.heavy
async def test_many_connections_at_a_time_and_no_more(stack: Stack) -> None:
    """All work beside each other and beside notebooks; one too many is refused with a sentence, as long as it is."""
    allow_many_descriptors()
    ada = stack.client("ada")
    kernel = await ada.start()
    port = await start(ada, kernel, ECHO)
    said: asyncio.Queue[str] = asyncio.Queue()
    async with forwarded(ada, port, said.put_nowait) as forward:

        async def talk(number: int) -> asyncio.StreamWriter:
            reader, writer = await connect(forward)
            writer.write(b"%d\n" % number)
            assert int(await reader.readline()) == number
            return writer

        writers = await asyncio.gather(*map(talk, range(MOST_CONNECTIONS)))
        assert await execute(ada, kernel, "1 + 1") == "2"
        reader, writer = await connect(forward)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert f"ada has {MOST_CONNECTIONS} connections to this gateway open" in await said.get()
        writer.close()
        for each in writers:
            each.close()

        async def is_open_again() -> bool:
            metrics = (await ada.request("GET", "/metrics")).body
            return "sharedkernel_port_connections 0.0" in metrics

        await until(is_open_again)
        (await talk(1)).close()


async def test_ports_of_others_and_of_the_services_are_refused(stack: Stack) -> None:
    """Another user's program, the gateway itself, and any other process of the same account."""
    ada, grace = stack.client("ada"), stack.client("grace")
    await ada.start()
    theirs = await start(grace, await grace.start(), ECHO)
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 at your service\r\n")
        with contextlib.suppress(ConnectionError):
            received.set_result(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        own = server.sockets[0].getsockname()[1]
        for port in (theirs, urlsplit(stack.gateway_url).port or 0, own):
            assert "is not served by a program of ada's" in await refusal(ada, port)
        assert not received.done() or await received == b""
    assert await listed(ada) == []
    assert await listed(grace) != []


async def test_only_ports_of_the_loopback_can_be_named(stack: Stack) -> None:
    """No other address, no unix socket, no number that is no port, and nothing where nobody listens."""
    ada = stack.client("ada")
    for name in ("169.254.169.254:80", "localhost", "%2Frun%2Fx.sock", "10.0.0.1", "6006%0d%0a", "-1", "123456"):
        assert (await ada.request("GET", f"{PORTS}/{name}")).status == 404
    with socket.create_server(("127.0.0.9", 0)) as elsewhere:  # which no other address reaches
        for port in (elsewhere.getsockname()[1], 0, 65536, 99999):
            ada.headers["Upgrade"] = "websocket"
            answer = await ada.request("GET", f"{PORTS}/{port}")
            assert (answer.status, answer.body["reason"]) == (404, "no_port")


async def test_who_accepts_counts_and_not_who_listens(stack: Stack, tmp_path: Path) -> None:
    """A socket on which ada's notebook listens, but from which a stranger accepts, leads to the stranger."""
    ada = stack.client("ada")
    kernel, path = await ada.start(), str(tmp_path / "hand")
    with socket.socket(socket.AF_UNIX) as hand:
        hand.bind(path)
        hand.listen()
        code = f"""if True:
            import socket
            shared = socket.create_server(("127.0.0.1", 0))
            with socket.socket(socket.AF_UNIX) as hand:
                hand.connect({path!r})
                socket.send_fds(hand, [b"x"], [shared.fileno()])
            print(shared.getsockname()[1])
        """
        port = int(await execute(ada, kernel, code))
        with hand.accept()[0] as given:
            _, (descriptor,), _, _ = socket.recv_fds(given, 1, 1)
    assert await listed(ada) == [(port, "notebook", kernel)]

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"not ada's")
        writer.close()

    async with await asyncio.start_server(accept, sock=socket.socket(fileno=descriptor)):
        assert "is not served by a program of ada's" in await refusal(ada, port)


async def test_an_owner_who_changes_is_another_one(stack: Stack) -> None:
    """A port that ada's program has left, and grace's has taken, is grace's with the next connection."""
    ada, grace = stack.client("ada"), stack.client("grace")
    adas, graces = await ada.start(), await grace.start()
    port = await start(ada, adas, ECHO)
    async with forwarded(ada, port) as forward:
        reader, writer = await connect(forward)
        writer.write(b"ada")
        assert await reader.readexactly(3) == b"ada"
        await execute(ada, adas, "child.kill(), child.wait()")
        assert await reader.read() == b""
        writer.close()
        again = 'socket.create_server(("127.0.0.1", {port}), reuse_port=False)'
        assert await start(grace, graces, ECHO, port=port, listener=again) == port
        reader, writer = await connect(forward)
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
        writer.transport.abort()
    assert [each[0] for each in await listed(grace)] == [port]


async def test_a_socket_that_two_users_hold_is_nobodys(stack: Stack, tmp_path: Path) -> None:
    """It cannot be known whose bytes would come."""
    ada, grace, path = stack.client("ada"), stack.client("grace"), str(tmp_path / "hand")
    adas, graces = await ada.start(), await grace.start()
    give = f"""if True:
        import socket
        hand = socket.socket(socket.AF_UNIX)
        hand.bind({path!r}); hand.listen()
        shared = socket.create_server(("127.0.0.1", 0))
        print(shared.getsockname()[1])
    """
    take = f"""if True:
        import socket
        taking = socket.socket(socket.AF_UNIX)
        taking.connect({path!r})
    """
    port = int(await execute(ada, adas, give))
    assert [each[0] for each in await listed(ada)] == [port]
    await execute(grace, graces, take)
    await execute(ada, adas, 'socket.send_fds(hand.accept()[0], [b"x"], [shared.fileno()])')
    await execute(grace, graces, "kept = socket.recv_fds(taking, 1, 1)[1]")
    assert await listed(ada) == [] == await listed(grace)


async def test_a_program_that_never_accepts_is_waited_for_no_longer_than_said(stack: Stack) -> None:
    """Then a sentence says so, though the system has made the connection."""
    ada = stack.client("ada")
    port = await start(ada, await ada.start(), NEVER)
    async with executors_of(stack.runtime_directory) as executors:
        ports = UserPorts(executors, accept_seconds=0.2)
        with pytest.raises(Exception, match=r"has accepted no connection for 0\.2 s"):
            async with ports.connection("ada", port):
                pass


async def test_a_token_is_needed_and_a_page_s_cookie_is_none(stack: Stack) -> None:
    """A page of a forwarded program gets nowhere, even in the browser that is signed in at the gateway."""
    ada = stack.client("ada")
    port = await start(ada, await ada.start(), ECHO)
    path = f"{PORTS}/{port}"
    answer = await ada.request("GET", path)  # nothing is connected to for what is no websocket
    assert (answer.status, answer.body["message"]) == (400, "this address is for a websocket.")
    browser = Browser(stack.gateway_url)
    assert (await browser.sign_in(stack.token("ada"))).status == 303
    assert [each["port"] for each in (await browser.request("GET", PORTS)).body["ports"]] == [port]
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    url = stack.gateway_url.replace("http", "ws") + path
    with pytest.raises(HTTPClientError) as refused:
        await websocket_connect(HTTPRequest(url, headers={"Cookie": cookies}))
    assert refused.value.code == 403
    with pytest.raises(HTTPClientError) as refused:
        await websocket_connect(f"{url}?token={stack.token('ada')}")
    assert refused.value.code == 403


async def test_what_was_opened_and_refused_is_in_the_audit_log(stack: Stack) -> None:
    """Who, which port, which program; once for all connections of a page."""
    ada, grace = stack.client("ada"), stack.client("grace")
    kernel = await ada.start(KERNEL_NOTEBOOK="run.ipynb")
    port = await start(ada, kernel, ECHO)
    writers = []
    async with forwarded(ada, port) as forward:
        for _ in range(2):
            reader, writer = await connect(forward)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            writers.append(writer)
        for each in writers:
            each.close()
    await refusal(grace, port)
    lines = [json.loads(line) for line in (stack.runtime_directory / "audit.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["action"] == f"open port {port}"]
    assert [(line["user"], line["session"], line["status"]) for line in found] == [
        ("ada", kernel, 101),
        ("grace", None, 403),
    ]
    assert found[0]["notebook"] == "run.ipynb"
    assert found[0]["program"]


def test_an_admin_can_switch_it_off(tmp_path: Path) -> None:
    """Neither a list nor a connection, and the sentence names the setting."""
    token, config = "a-token-of-a-test", tmp_path / "config.py"
    config.write_text(f"c.SharedKernelGateway.ports = False\nc.IdentityProvider.token = {token!r}\n")

    async def scenario(gateway: SharedKernelGateway) -> None:
        await asyncio.sleep(0)  # it binds its port in the loop's first round
        user = Client(f"http://127.0.0.1:{gateway.port}", token)
        for path in (PORTS, f"{PORTS}/6006"):
            answer = await user.request("GET", path)
            assert (answer.status, "c.SharedKernelGateway.ports" in answer.body["message"]) == (403, True)
        assert "forwards no ports" in await refusal(user, 6006)

    with in_process("--config", str(config), directory=tmp_path) as (gateway, loop):
        loop.run(scenario(gateway))
