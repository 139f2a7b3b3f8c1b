"""Forwarded ports: bytes of real programs pass unchanged, and only to those whose programs they are."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import struct
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from sharedkernel.gateway.http.ports import MOST_CONNECTIONS, UserPorts
from sharedkernel.ipc.seqpacket import allow_many_descriptors
from tests.gateway.client import Client
from tests.gateway.conftest import Stack
from tests.gateway.devices import execute, until
from tests.gateway.http.port_programs import ECHO, NEVER, connect, echo_after, executors_of, forwarded, refusal, start
from tests.gateway.http.test_operations import audit
from tests.gateway.page.browser import Browser

PORTS = "/sharedkernel/api/ports"

#: a thread of the notebook, as gradio's, that listens for both versions of IP
_THREAD = """if True:
    import http.server, socket, threading
    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6
    server = Server(("::", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port)
"""
#: a page and a websocket, as gradio, Dash and TensorBoard have them
_WEB = """if True:
    import asyncio, socket
    from tornado import web, websocket, httpserver

    class Page(web.RequestHandler):
        def get(self):
            self.write("made on " + self.request.host)

    class Socket(websocket.WebSocketHandler):
        def on_message(self, message):
            self.write_message(message[::-1])

    async def main():
        routes = [("/", Page), ("/socket", Socket)]
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


async def test_pages_and_websockets_work_as_they_stand(stack: Stack) -> None:
    """They are listed for their user alone, by program and notebook, and the program sees the user's own address.

    The audit log has who opened it, once for all connections of a page, and who was refused.
    """
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
        websocket = await websocket_connect(f"ws://{here}/socket")
        assert (await AsyncHTTPClient().fetch(f"http://{here}/")).body.decode() == f"made on {here}"
        await websocket.write_message("tensor")
        assert await websocket.read_message() == "rosnet"
        websocket.close()
    assert "is not served by a program of grace's" in await refusal(grace, port)
    opened, refused = [entry for entry in audit(stack) if entry["action"] == f"open port {port}"]
    assert (opened["user"], opened["session"], opened["status"]) == ("ada", kernel, 101)
    assert (opened["notebook"], opened["program"][:6]) == ("plots/live.ipynb", "python")
    assert (refused["user"], refused["session"], refused["status"]) == ("grace", None, 403)
    thread = int(await execute(ada, kernel, _THREAD))
    assert (thread, "notebook", kernel) in await listed(ada)
    async with forwarded(ada, thread) as forward:
        answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{forward.local_port}/")
        assert b"Directory listing" in answer.body


async def test_fifty_megabytes_pass_each_way_no_faster_than_they_are_taken(stack: Stack, tmp_path: Path) -> None:
    """Unchanged, in order, and in little memory of the gateway's; most stay where they are until the program reads."""
    ada, go = stack.client("ada"), tmp_path / "go"
    port = await start(ada, await ada.start(), echo_after(go))
    data = random.Random(1).randbytes(50 * _MEBIBYTE)
    gateway = psutil.Process(stack.gateway.process.pid)
    before = gateway.memory_info().rss
    async with forwarded(ada, port) as forward:
        reader, writer = await connect(forward)
        writer.write(data)
        left, waiting = len(data), writer.transport.get_write_buffer_size()
        while waiting < left:  # until half a second passes without any being taken
            await asyncio.sleep(0.5)
            left, waiting = waiting, writer.transport.get_write_buffer_size()
        assert left > 10 * _MEBIBYTE
        assert gateway.memory_info().rss - before < 16 * _MEBIBYTE
        go.touch()
        writer.write_eof()
        digest = hashlib.sha256()
        while piece := await reader.read(65536):
            digest.update(piece)
        writer.close()
    assert digest.digest() == hashlib.sha256(data).digest()
    assert gateway.memory_info().rss - before < 24 * _MEBIBYTE


@pytest.mark.heavy
async def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path) -> None:
    """By the second ping, however much of what it has sent the program has not taken; one that stays is pinged on."""
    config = 'c.ServerApp.tornado_settings = {"ws_ping_interval": 500}'
    with Stack(users=["ada"], capacity="1GiB", config=config) as stack:
        await is_rid_of_who_goes_away(stack, tmp_path)


async def is_rid_of_who_goes_away(stack: Stack, tmp_path: Path) -> None:
    """Look at such a client, at one that stays, and at one that sends too much."""
    ada = Client(stack.gateway_url, stack.token("ada"))
    kernel = await ada.start()
    port = await start(ada, kernel, echo_after(tmp_path / "never"))
    gateway = psutil.Process(stack.gateway.process.pid)

    async def is_free() -> bool:
        return not any(each.raddr and each.raddr.port == port for each in gateway.net_connections("tcp"))

    url = stack.gateway_url.replace("http", "ws") + f"{PORTS}/{port}"
    client = await websocket_connect(HTTPRequest(url, headers=ada.headers))
    assert not await is_free()
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
