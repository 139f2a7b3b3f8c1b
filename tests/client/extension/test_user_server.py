"""The user's files on the host through their own Jupyter server: passed on, copied with progress, and looked for."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jupyter_server.services.contents.manager import ContentsManager

from sharedkernel.client.extension.user_server import local_path
from sharedkernel.client.gateway.connection import Gateway
from sharedkernel.client.gateway.credentials import TOKEN_VARIABLE, URL_VARIABLE, Credentials
from sharedkernel.client.gateway.files import RemoteFiles, part_of
from sharedkernel.errors import Refused
from tests.client.extension.server import PATIENCE, TOKEN, JupyterServer
from tests.executor.isolation import ADA
from tests.files import FileStack
from tests.gateway.conftest import wait_for

pytestmark = pytest.mark.heavy

ROOT = "/sharedkernel/api"
CONTENTS = f"{ROOT}/host/api/contents"
MIB = 1 << 20
#: the last line of a copy
DONE = {"ended": True, "links": 0}


def lines(server: JupyterServer, **copy: Any) -> list[dict[str, Any]]:
    """Return the lines of a copy's answer."""
    body = server.ask("POST", f"{ROOT}/copies", copy).body
    return [json.loads(line) for line in body.splitlines()] if isinstance(body, str) else [body]


def test_a_drive_is_answered_as_by_the_users_server(lab: JupyterServer, files: FileStack) -> None:
    """Made, listed, renamed and deleted; a refusal has the status and the sentence of there."""
    made = lab.ask("PUT", f"{CONTENTS}/kept.txt", {"type": "file", "format": "text", "content": "as it is"})
    assert made.status == 201
    there = {path.name for path in files.home().iterdir() if not path.name.startswith(".")}
    assert "kept.txt" in there
    assert {entry["name"] for entry in lab.ask("GET", CONTENTS).body["content"]} == there
    assert lab.ask("PATCH", f"{CONTENTS}/kept.txt", {"path": "other.txt"}).status == 200
    assert (files.home() / "other.txt").read_text() == "as it is"
    missing = lab.ask("GET", f"{CONTENTS}/kept.txt")
    assert missing.status == 404
    assert "kept.txt" in missing.body["message"]
    assert lab.ask("DELETE", f"{CONTENTS}/other.txt").status == 204
    assert not (files.home() / "other.txt").exists()
    assert lab.ask("GET", CONTENTS, token=None).status == 403
    assert lab.ask("GET", f"{ROOT}/host/files/other.txt", token="wrong").status == 403


def test_a_file_cannot_act_as_a_page_of_the_server(lab: JupyterServer, files: FileStack) -> None:
    """As with the files of Jupyter's own: in a sandbox, and for requests of the server's own pages alone."""
    (files.home() / "page.html").write_text("<script>alert(1)</script>")
    url = f"{lab.url}{ROOT}/host/files/page.html"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"token {TOKEN}"})) as answer:
        assert "sandbox allow-scripts" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Type"].startswith("text/html")
        assert answer.read() == b"<script>alert(1)</script>"


@pytest.mark.parametrize("name", ["a b&c=d?e#f%41 ☃.txt", "new\nline.txt"])
def test_copies_there_and_back_are_the_same(name: str, lab: JupyterServer, files: FileStack) -> None:
    """Whatever a file is called; folders come with it, and progress ends with all of it."""
    content = os.urandom(3 * MIB)
    (lab.notebooks / name).write_bytes(content)
    told = lines(lab, **{"from": name, "to": f"in/deep/{name}", "to_host": True})
    assert told[-1] == DONE
    assert told[-2] == {"name": name, "done": len(content), "total": len(content)}
    assert (files.home() / "in" / "deep" / name).read_bytes() == content
    assert lab.ask("GET", f"{CONTENTS}/in/deep/{quote(name)}?content=0").body["size"] == len(content)
    back = {"from": f"in/deep/{name}", "to": "back.txt", "to_host": False}
    assert lines(lab, **back, overwrite=True)[-1] == DONE
    assert (lab.notebooks / "back.txt").read_bytes() == content
    again = lines(lab, **back)[-1]
    assert again["reason"] == "exists"
    assert "back.txt exists" in again["message"]


def test_links_and_hidden_files_of_a_folder_are_left_alone(lab: JupyterServer, files: FileStack) -> None:
    """And said: a link may lead out of what is copied, here or there."""
    folder, outside = lab.notebooks / "repository", lab.notebooks.parent / "apart"
    (folder / ".git").mkdir(parents=True)
    (folder / "kept.txt").write_text("kept")
    outside.mkdir()
    (outside / "key").write_text("private")
    (folder / "key").symlink_to(outside / "key")
    (folder / "apart").symlink_to(outside)
    there = {"from": "repository", "to": "repository", "to_host": True}
    assert lines(lab, **there)[-1] == {"ended": True, "links": 2}
    copied = files.home() / "repository"
    assert [path.name for path in copied.iterdir()] == ["kept.txt"]
    (copied / "apart").mkdir()
    (copied / "apart" / "key").write_text("planted")
    refused = lines(lab, **{"from": "repository", "to": "repository", "overwrite": True})[-1]
    assert "is a link to a folder here" in refused["message"]
    assert (outside / "key").read_text() == "private"
    (lab.notebooks / "whole").symlink_to(outside)
    for name in ("whole", "repository/key", "repository/.git"):
        assert lines(lab, **{"from": name, "to": "taken", "to_host": True})[-1]["reason"] == "not_allowed"


def test_only_what_jupyter_serves_from_a_folder_is_reached() -> None:
    """Other managers of contents have a root that means nothing."""
    with pytest.raises(Refused, match="no folder"):
        local_path(ContentsManager(), "etc/passwd")


class GivenUp(Exception):
    """The end of a copy by its progress."""


def test_a_download_replaces_nothing_that_it_was_not_told_to(files: FileStack, tmp_path: Path) -> None:
    """Neither what came meanwhile, nor anything once it is given up, nor a folder."""
    gateway = Gateway(Credentials(url=files.gateway_url, token=files.token(ADA)))
    target, source = tmp_path / "target", tmp_path / "source"
    source.write_bytes(bytes(MIB))
    RemoteFiles(gateway, lambda *_: None).put(source, "source", overwrite=True)

    def write_meanwhile(name: str, done: int, total: int) -> None:
        if done:
            target.write_text("meanwhile")

    with pytest.raises(Refused, match="exists here by now"):
        RemoteFiles(gateway, write_meanwhile).get("source", target, overwrite=False)
    assert target.read_text() == "meanwhile"
    seen = []

    def give_up(name: str, done: int, total: int) -> None:
        seen.append(done)
        if seen.count(total) == 2 or not total:  # the second time its checksum is known
            raise GivenUp

    part_of(target).unlink()
    with pytest.raises(GivenUp):
        RemoteFiles(gateway, give_up).get("source", target, overwrite=True)
    assert target.read_text() == "meanwhile"
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="is a folder here"):
        RemoteFiles(gateway, lambda *_: None).get("source", tmp_path / "folder", overwrite=True)


def test_requests_have_a_limit_and_leave_the_gateway_with_their_pages(tmp_path: Path) -> None:
    """Though it has not answered: a thread waits for each."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        server = JupyterServer(tmp_path / "server", {URL_VARIABLE: url, TOKEN_VARIABLE: "x" * 40})
        server.start()
        try:
            head = f"GET {CONTENTS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: token {TOKEN}\r\n\r\n"
            with contextlib.ExitStack() as exits:
                pages, upstreams = [], []
                for _ in range(24):
                    pages.append(exits.enter_context(socket.create_connection(("127.0.0.1", server.port))))
                    pages[-1].sendall(head.encode())
                    upstreams.append(exits.enter_context(silent.accept()[0]))
                    upstreams[-1].settimeout(PATIENCE)
                    assert upstreams[-1].recv(MIB).startswith(b"GET /api/contents ")
                one_more = server.ask("GET", CONTENTS)
                assert (one_more.status, one_more.body["reason"]) == (429, "busy")
                for page, upstream in zip(pages, upstreams, strict=True):
                    page.close()
                    assert upstream.recv(MIB) == b""
        finally:
            server.stop()


@pytest.mark.parametrize("outside", ["../outside.txt", "/../outside.txt", "out/outside.txt", "a/../../outside.txt"])
def test_nothing_outside_of_what_jupyter_serves_is_copied(
    outside: str, lab: JupyterServer, files: FileStack, tmp_path: Path
) -> None:
    """Neither read nor written, also through a link to a folder."""
    (lab.notebooks.parent / "outside.txt").write_text("private")
    (files.home() / "evil.txt").write_text("evil")
    with contextlib.suppress(FileExistsError):
        (lab.notebooks / "out").symlink_to(lab.notebooks.parent)
    assert lines(lab, **{"from": outside, "to": "taken.txt", "to_host": True})[-1]["reason"] == "not_allowed"
    assert lines(lab, **{"from": "evil.txt", "to": outside}, overwrite=True)[-1]["reason"] == "not_allowed"
    assert not (files.home() / "taken.txt").exists()
    assert (lab.notebooks.parent / "outside.txt").read_text() == "private"


def test_what_is_no_copy_is_refused(lab: JupyterServer) -> None:
    """With a sentence each."""
    os.mkfifo(lab.notebooks / "pipe")
    assert "no regular file" in lines(lab, **{"from": "pipe", "to": "pipe", "to_host": True})[-1]["message"]
    assert "No such file" in lines(lab, **{"from": "none", "to": "none", "to_host": True})[-1]["message"]
    assert "no file none there" in lines(lab, **{"from": "none", "to": "none"})[-1]["message"]
    assert lab.ask("POST", f"{ROOT}/copies", {"from": "", "to": 3}).status == 400


def test_a_copy_ends_with_its_connection(lab: JupyterServer, files: FileStack) -> None:
    """What has come stays, and the next one goes on there."""
    size = 256 * MIB
    with (lab.notebooks / "large").open("wb") as file:
        file.truncate(size)
    body = json.dumps({"from": "large", "to": "large", "to_host": True}).encode()
    head = (
        f"POST {ROOT}/copies HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: token {TOKEN}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    part = files.home() / ".large.sk-part"
    with socket.create_connection(("127.0.0.1", lab.port)) as page:
        page.sendall(head.encode() + body)
        wait_for(lambda: part.exists() and part.stat().st_size > MIB)
    kept = _settled(part)
    assert MIB < kept < size
    assert not (files.home() / "large").exists()
    told = lines(lab, **{"from": "large", "to": "large", "to_host": True})
    assert told[-1] == DONE
    assert (files.home() / "large").stat().st_size == size


def _settled(path: Path) -> int:
    """Return the size of a file once it has stopped growing and no process has it open."""
    sizes = [-1]

    def is_settled() -> bool:
        sizes.append(path.stat().st_size)
        return sizes[-1] == sizes[-2] and not _has_writer(path)

    wait_for(is_settled)
    return sizes[-1]


def _has_writer(path: Path) -> bool:
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if entry.readlink() == path:
                return True
    return False


def test_only_plain_files_beside_a_notebook_are_offered(lab: JupyterServer) -> None:
    """No link, nothing hidden, nothing above the notebook's folder."""
    folder = lab.notebooks / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.csv").write_text("a,b\n")
    (folder / ".hidden").write_text("x")
    (folder / "link.csv").symlink_to("data/a.csv")
    (folder / "linked").symlink_to("data")
    (lab.notebooks / "above.csv").write_text("x")
    (lab.notebooks / "root.csv").write_text("root")

    def ask(name: str, notebook: str = "work/n.ipynb") -> Any:
        answer = lab.ask("GET", f"{ROOT}/local-file?notebook={quote(notebook)}&name={quote(name)}")
        return answer.body if answer.status == 200 else answer.status

    assert ask("data/a.csv") == {"path": "work/data/a.csv", "size": 4}
    assert ask("root.csv", "n.ipynb") == {"path": "root.csv", "size": 4}
    for name in (".hidden", "link.csv", "linked/a.csv", "data", "none.csv", "/etc/passwd", "a\0b", "x" * 300):
        assert ask(name) == 404, name
    for name in ("../above.csv", "data/../../above.csv"):
        assert ask(name) in (400, 404), name


def test_a_notebook_on_the_drive_runs_in_its_folder(lab: JupyterServer, files: FileStack) -> None:
    """Jupyter itself knows no folder for a path of another drive."""
    (files.home() / "there").mkdir(parents=True)
    notebook = {
        "path": "gpu-host:there/made-up", "name": "n.ipynb", "type": "notebook", "kernel": {"name": "shared-gpu"},
    }  # fmt: skip
    model = lab.ask("POST", "/api/sessions", notebook).body
    with lab.page() as page:
        page.wait(lambda view: model["kernel"]["id"] in view["kernels"])
        view = page.wait(lambda view: view["status"] is not None and view["status"]["sessions"])
    assert [session["notebook"] for session in view["status"]["sessions"]] == ["gpu-host:there/n.ipynb"]
    (session,) = {entry for entry in Path("/proc").glob("[0-9]*") if _works_in(entry, files.home() / "there")}
    assert session.name != str(os.getpid())
    lab.ask("DELETE", f"/api/sessions/{model['id']}")


def _works_in(process: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return (process / "cwd").readlink() == folder
    return False
