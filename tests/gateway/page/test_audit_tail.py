"""The end of the audit log: what is read of it, and who may read it."""

from __future__ import annotations

import json
from pathlib import Path

from sharedkernel.gateway.auth.audit import AuditLog
from sharedkernel.gateway.page.audit_tail import newest_entries
from tests.gateway.conftest import Stack

AUDIT = "/sharedkernel/api/audit"


def numbers(path: Path, user: str = "", **bounds: int) -> tuple[list[int], bool]:
    entries, is_cut = newest_entries(path, user, **bounds)
    return [entry["number"] for entry in entries], is_cut


def test_the_newest_come_first_over_the_border_of_files(tmp_path: Path) -> None:
    """As many as are wanted, without a line that begins before what may be read."""
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, most_bytes=3000)
    for number in range(100):  # it is set aside three times
        audit.record("start session", user="ada" if number % 10 == 0 else "grace", number=number)
    assert path.with_name("audit.jsonl.1").exists()
    assert len(path.read_bytes().splitlines()) < 50
    assert numbers(path, most=90) == (list(range(99, 9, -1)), True)
    assert numbers(path, most=100) == numbers(path) == (list(range(99, -1, -1)), False)
    size = len(path.read_bytes().splitlines(keepends=True)[-1])
    assert numbers(path, most_bytes=3 * size + size // 2) == ([99, 98, 97], True)
    assert numbers(path, most_bytes=3 * size + size // 2, user="ada") == ([], True)
    path.unlink()  # as when it has just been set aside
    last = json.loads(path.with_name("audit.jsonl.1").read_bytes().splitlines()[-1])
    assert numbers(path)[0][0] == last["number"]


def test_users_are_found_by_a_part_of_their_names(tmp_path: Path) -> None:
    """They who acted, and they whose session it was; not where it says anything else."""
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    audit.record("end session", user="Ada", owner="grace", number=1)
    audit.record("end session", user=None, owner="linus", number=2)
    audit.record("add token", user="linus", name="grace", number=3)
    assert numbers(path) == ([3, 2, 1], False)
    assert numbers(path, "grace") == numbers(path, "ad") == ([1], False)
    assert numbers(path, "LINUS") == ([3, 2], False)
    assert numbers(path, "nobody") == ([], False)


def test_what_is_no_entry_is_left_out(tmp_path: Path) -> None:
    """A line that is still being written, too; nothing is found where nothing was recorded."""
    path = tmp_path / "audit.jsonl"
    assert numbers(path) == ([], False)
    path.write_bytes(b'{"user": "ada", "number": 1}\nnonsense\n[2]\n\xff\n{"user": "ada", "number": 3}\n{"user": "ad')
    assert numbers(path) == ([3, 1], False)


async def test_only_admins_read_it(stack: Stack) -> None:
    """They find what was done just now, or why it cannot be read; others are refused, and so is what is no number."""
    ada, grace = stack.client("ada"), stack.client("grace")
    kernel = await grace.start()
    await ada.request("DELETE", f"/api/kernels/{kernel}?linger=0")
    answer = await ada.request("GET", f"{AUDIT}?user=grace&entries=2")
    assert answer.status == 200
    assert answer.body["file"] == str(stack.runtime_directory / "audit.jsonl")
    end, start = answer.body["entries"]
    assert (end["action"], end["user"], end["owner"], end["session"]) == ("end session", "ada", "grace", kernel)
    assert (start["action"], start["user"], start["session"]) == ("start session", "grace", kernel)
    refused = await grace.request("GET", AUDIT)
    assert (refused.status, refused.body["reason"]) == (403, "not_admin")
    for number in ("0", "501", "many", "-1"):
        refused = await ada.request("GET", f"{AUDIT}?entries={number}")
        assert (refused.status, refused.body["reason"]) == (400, "bad_request")
    path = stack.runtime_directory / "audit.jsonl"
    kept = path.rename(path.with_name("kept"))
    path.symlink_to(kept)  # which is not read
    try:
        refused = await ada.request("GET", AUDIT)
        assert (refused.status, refused.body["reason"]) == (409, "no_audit_log")
        assert refused.body["message"].startswith(f"the audit log {path} cannot be read: ")
    finally:
        path.unlink()
        kept.rename(path)
