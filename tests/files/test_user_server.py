"""What passes through the gateway to a user's server, and what does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.parse

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClosedError, websocket_connect

from tests.executor.isolation import ADA, GRACE
from tests.files import FileStack, with_checksum
from tests.gateway.client import PATIENCE, Client
from tests.gateway.page.browser import Browser

#: for what is the gateway's alone, whatever the level
AT_HOMES = pytest.mark.parametrize("stack", ["homes"], indirect=True)


async def upload(client: Client, name: str, content: bytes, query: str = "") -> int:
    path = f"/sharedkernel/files/{urllib.parse.quote(name)}?offset=0&total={len(content)}{query}"
    return (await client.request("PUT", path, raw=with_checksum(content))).status


@pytest.mark.heavy
async def test_files_are_listed_edited_and_fetched(stack: FileStack) -> None:
    """Jupyter's own requests work, and what they make is the user's."""
    ada = stack.client()
    assert (await ada.request("PUT", "/api/contents/notes", {"type": "directory"})).status == 201
    model = {"type": "file", "format": "text", "content": "x = 1\n"}
    assert (await ada.request("PUT", "/api/contents/notes/a.py", model)).status == 201
    listing = (await ada.request("GET", "/api/contents/notes")).body
    assert [entry["name"] for entry in listing["content"]] == ["a.py"]
    assert (await ada.request("GET", "/files/notes/a.py")).body == "x = 1\n"
    path = stack.home() / "notes" / "a.py"
    assert path.read_text() == "x = 1\n"
    assert path.stat().st_uid == stack.home().stat().st_uid
    assert (await ada.request("PATCH", "/api/contents/notes/a.py", {"path": "notes/b.py"})).status == 200
    assert (await ada.request("DELETE", "/api/contents/notes")).status == 204
    assert not path.parent.exists()


async def test_odd_names(stack: FileStack) -> None:
    """They go up, are listed and come down as they are."""
    ada = stack.client()
    for name in ("two\nlines", "u\u0308ml\u00e4ut \U0001f600", "n" * 255, "per%cent ?#&"):
        assert await upload(ada, name, b"content") == 204
        try:
            assert name in [entry["name"] for entry in (await ada.request("GET", "/api/contents")).body["content"]]
            assert (await ada.request("GET", f"/files/{urllib.parse.quote(name)}")).body == "content"
        finally:
            (stack.home() / name).unlink()


@pytest.mark.heavy
async def test_no_path_leads_out_of_the_home_and_links_lead_where_the_account_may(stack: FileStack) -> None:
    """Dots and absolute paths, spelt any way, by each route; links as in a notebook.

    At the level `users`, another user's home is closed; at `homes`, all is one account's.
    """
    ada, home, other = stack.client(), stack.home(), stack.home(GRACE)
    for client in (ada, stack.client(GRACE)):
        await client.request("GET", "/api/contents")  # its home is made
    (other / "secret").write_text("of grace")
    os.chown(other / "secret", other.stat().st_uid, other.stat().st_gid)
    for path in ("../{other}/secret", "%2e%2e/{other}/secret", "..%2f{other}%2fsecret", "{home}/secret"):
        for route in ("/api/contents/", "/files/", "/sharedkernel/files/"):
            answer = await ada.request("GET", route + path.format(other=other.name, home=other))
            assert answer.status in (400, 403, 404), (route, path, answer)
            assert "of grace" not in str(answer.body)
    for name, target in (("system", "/etc"), ("theirs", other)):
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(target)
    assert (await ada.request("GET", "/files/system/hostname")).status == 200
    answers = [await ada.request("GET", path + "theirs/secret") for path in ("/files/", "/api/contents/")]
    status = await upload(ada, "theirs/new", b"x")
    if stack.apart is not None:
        assert all(answer.status >= 400 and "of grace" not in str(answer.body) for answer in answers)
        assert status in (403, 404)
        assert not (other / "new").exists()
    else:
        assert answers[0].body == "of grace"


@pytest.mark.heavy
async def test_an_upload_is_whole_or_not_there(stack: FileStack) -> None:
    """It goes on where it was cut; a wrong checksum leaves nothing; a file is replaced only if that is said."""
    ada, home, content = stack.client(), stack.home(), os.urandom(300_000)
    path = f"/sharedkernel/files/whole.bin?total={len(content)}&offset="
    wrong = await ada.request("PUT", path + "0", raw=content + bytes(32))
    assert (wrong.status, wrong.body["reason"]) == (422, "checksum")
    short = await ada.request("PUT", path + "0", raw=content[:100_000])
    assert short.status == 400
    state = (await ada.request("GET", "/sharedkernel/files/whole.bin")).body
    assert (state["size"], state["part"]) == (None, 100_000)
    assert "whole" not in json.dumps((await ada.request("GET", "/api/contents")).body)
    gap = await ada.request("PUT", path + "100001", raw=with_checksum(content)[100_001:])
    assert (gap.status, gap.body["reason"]) == (409, "wrong_offset")
    assert (await ada.request("PUT", path + "100000", raw=with_checksum(content)[100_000:])).status == 204
    assert (home / "whole.bin").read_bytes() == content
    assert await upload(ada, "whole.bin", b"other") == 409
    (home / "whole.bin").chmod(0o640)
    assert await upload(ada, "whole.bin", b"other", "&overwrite=1") == 204
    assert (home / "whole.bin").read_bytes() == b"other"
    assert (home / "whole.bin").stat().st_mode & 0o777 == 0o640
    # what somebody has put where an upload would begin is not written to
    (home / ".whole.bin.sk-part").symlink_to(home / "whole.bin")
    assert await upload(ada, "whole.bin", b"content", "&overwrite=1") == 403
    assert (home / "whole.bin").read_bytes() == b"other"
    (home / ".whole.bin.sk-part").unlink()


@AT_HOMES
async def test_only_a_token_in_a_header_counts(stack: FileStack) -> None:
    """Neither none, nor a wrong one, nor one in the address, nor the cookie of the gateway's page."""
    assert (await Client(stack.gateway_url, "").request("GET", "/files/x")).status == 403
    assert (await Client(stack.gateway_url, "wrong-token").request("GET", "/files/x")).status == 403
    answer = await Client(stack.gateway_url, "").request("GET", f"/files/x?token={stack.token(ADA)}")
    assert (answer.status, answer.body["reason"]) == (403, "not_allowed")
    page = Browser(stack.gateway_url)
    await page.sign_in(stack.token(ADA))
    assert (await page.request("GET", "/sharedkernel/api/status")).status == 200
    for path in ("/sharedkernel/files/x", "/files/x", "/api/contents", "/api/terminals"):
        assert (await page.request("GET", path)).status == 403


async def open_terminal(client: Client, name: str) -> str:
    """Type into a terminal through the gateway, and return what it shows."""
    url = "ws" + client.url.removeprefix("http") + f"/terminals/websocket/{name}"
    socket = await websocket_connect(HTTPRequest(url, headers=client.headers, request_timeout=PATIENCE))
    shown = ""
    await socket.write_message(json.dumps(["stdin", "echo is-$(id -u)-$(pwd)-done\r"]))
    while "-done" not in shown.replace("$(pwd)-done", ""):
        message = await socket.read_message()
        if message is None:
            raise WebSocketClosedError
        kind, *rest = json.loads(message)
        shown += rest[0] if kind == "stdout" else ""
    socket.close()
    return shown


async def test_a_terminal_is_its_users(stack: FileStack) -> None:
    """It runs under the user's account in the user's home; another user does not get at it."""
    ada, grace = stack.client(), stack.client(GRACE)
    name = (await ada.request("POST", "/api/terminals")).body["name"]
    shown = await asyncio.wait_for(open_terminal(ada, name), PATIENCE)
    assert f"is-{stack.home().stat().st_uid}-{stack.home()}-done" in shown
    with pytest.raises(HTTPClientError, match="404"):
        await open_terminal(grace, name)
    assert (await grace.request("DELETE", f"/api/terminals/{name}")).status == 404
    assert (await ada.request("DELETE", f"/api/terminals/{name}")).status == 204
    audit = (stack.runtime_directory / "audit.jsonl").read_text()
    assert f'"action": "terminals", "method": "GET", "path": "/terminals/websocket/{name}"' in audit


@AT_HOMES
async def test_the_audit_log_has_both_names(stack: FileStack) -> None:
    """Of what is renamed or copied; a body that cannot be looked at is refused."""
    ada = stack.client()
    body = {"type": "file", "format": "text", "content": "ada"}
    assert (await ada.request("PUT", "/api/contents/named", body)).status == 201
    assert (await ada.request("PATCH", "/api/contents/named", {"path": "renamed"})).status == 200
    assert (await ada.request("POST", "/api/contents", {"copy_from": "renamed"})).status == 201
    assert (stack.home() / "renamed").read_text() == "ada"
    audit = [json.loads(line) for line in (stack.runtime_directory / "audit.jsonl").read_text().splitlines()]
    renamed, copied = audit[-2:]
    assert (renamed["method"], renamed["path"], renamed["to"]) == ("PATCH", "/api/contents/named", "renamed")
    assert (copied["method"], copied["path"], copied["copy_from"]) == ("POST", "/api/contents", "renamed")
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    head = f"Host: 127.0.0.1\r\nAuthorization: token {stack.token(ADA)}\r\nTransfer-Encoding: chunked\r\n"
    writer.write(f'PATCH /api/contents/renamed HTTP/1.1\r\n{head}\r\n10\r\n{{"path": "unseen"}}\r\n'.encode())
    assert b" 400 " in await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.close()
    assert (stack.home() / "renamed").exists()


@pytest.mark.heavy
@AT_HOMES
async def test_a_refused_websocket_is_followed_by_requests_that_are_checked(stack: FileStack) -> None:
    """What comes behind it on its connection does not reach the user's server unseen."""
    head = f"Host: 127.0.0.1\r\nAuthorization: token {stack.token(ADA)}\r\n"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += f"Sec-WebSocket-Key: {'A' * 22}==\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(f"GET /terminals/websocket/nope HTTP/1.1\r\n{head}{upgrade}\r\n".encode())
    body = '{"type": "directory"}'
    put = f"PUT /api/contents/smuggled HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"
    writer.write(put.encode())
    assert b" 404 " in await asyncio.wait_for(reader.readline(), PATIENCE)
    writer.write_eof()
    await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    audit = [json.loads(line) for line in (stack.runtime_directory / "audit.jsonl").read_text().splitlines()]
    made = [entry for entry in audit if entry.get("path") == "/api/contents/smuggled"]
    assert len(made) == 1 or not (stack.home() / "smuggled").exists()  # one that its client has cut may not be done


@pytest.mark.heavy
async def test_a_server_that_is_killed_is_started_again(stack: FileStack) -> None:
    """One serves a user; a fourth that would fail within a minute is not started, and that is said."""
    ada, path = stack.client(), "/api/contents"
    assert (await ada.request("GET", path)).status == 200
    uid = stack.home().stat().st_uid
    before = [process.pid for process in stack.servers()]
    assert {(await ada.request("GET", path)).status for _ in range(5)} == {200}
    assert [process.pid for process in stack.servers()] == before
    answers = []
    while not answers or answers[-1].status == 200:
        for process in stack.servers():
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE)
        answers.append(await ada.request("GET", path))
    assert 3 <= len(answers) <= 5  # an executor may hear of an end after the next request
    answer = answers[-1]
    assert (answer.status, answer.body["reason"]) == (503, "start")
    assert "3 times within a minute" in answer.body["message"]
    assert uid == stack.home().stat().st_uid
