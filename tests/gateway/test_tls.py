"""Encrypted gateways: what they refuse to be without, and how the notebook's side comes to trust them."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from sharedkernel.client.gateway.connection import Gateway, fetch
from sharedkernel.client.gateway.credentials import Credentials
from sharedkernel.client.gateway.refusals import GatewayRefused, GatewayUnreachable
from sharedkernel.client.gateway.server import check_fingerprint
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import ConfigError
from sharedkernel.gateway.tls import Certificate, check_exposure
from sharedkernel.local_stack import free_port
from sharedkernel.services import Service
from tests.command import run_here
from tests.gateway.conftest import run
from tests.gateway.test_command import in_process


@dataclass(frozen=True)
class Files:
    """An authority's certificate, and a key with its certificate for 127.0.0.1."""

    ca: str
    certificate: str
    key: str


def issue(directory: Path, name: str = "127.0.0.1") -> Files:
    """Write what a new authority signs for a host called *name*."""
    directory.mkdir(exist_ok=True)
    authority = trustme.CA()
    issued = authority.issue_cert(name)
    files = Files(*(str(directory / part) for part in ("ca.pem", "gpu.crt", "gpu.key")))
    authority.cert_pem.write_to_path(files.ca)
    issued.private_key_pem.write_to_path(files.key)
    Path(files.certificate).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return files


def test_an_address_that_is_safe_or_was_allowed_is_served() -> None:
    """On this machine, encrypted, or told so in so many words; for others the sentence says what to do."""
    for ip in ("127.0.0.1", "::1", "localhost"):
        check_exposure(ip, encrypted=False, allowed=False)
    for ip in ("0.0.0.0", "::", "", "10.0.0.1", "gpu.example.org"):
        check_exposure(ip, encrypted=True, allowed=False)
        check_exposure(ip, encrypted=False, allowed=True)
        with pytest.raises(ConfigError, match=r"--certfile.*allow_insecure_remote"):
            check_exposure(ip, encrypted=False, allowed=False)


def test_the_gateway_refuses_before_it_listens(tmp_path: Path) -> None:
    """One sentence, for an address without encryption as for files that are no certificate."""
    (tmp_path / "empty").touch()
    for options, sentence in (
        (["--ip", "0.0.0.0"], "serving on 0.0.0.0 without encryption would show tokens"),
        (["--certfile", str(tmp_path / "missing")], "there is no .*missing. Name yours .* openssl req -x509"),
        (["--certfile", str(tmp_path / "empty")], "cannot be used as certificate and key"),
    ):
        with pytest.raises(ConfigError, match=sentence), in_process(*options, directory=tmp_path):
            pass


def test_a_certificate_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    """Half a renewal is refused, and connections are served as before."""
    files, other = issue(tmp_path / "a"), issue(tmp_path / "b")
    certificate = Certificate(files.certificate, files.key)
    Path(files.key).write_bytes(Path(other.key).read_bytes())
    with pytest.raises(ConfigError, match="cannot be used as certificate and key"):
        certificate.load()
    Path(files.certificate).write_bytes(Path(other.certificate).read_bytes())
    certificate.load()


class Encrypted:
    """A gateway of its own that shows a certificate; no executor."""

    def __init__(self, directory: Path) -> None:
        self.files = issue(directory)
        self.directory = directory
        self.url = f"https://127.0.0.1:{(port := free_port())}"
        self.token = "a-token-of-the-test"
        (directory / "config.py").write_text(f"c.IdentityProvider.token = {self.token!r}\n")
        (directory / "tmp").mkdir()
        self.service = Service(
            ["gateway", "--port", str(port), "--runtime-dir", str(directory / "run"),
             "--config", str(directory / "config.py"),
             "--certfile", self.files.certificate, "--keyfile", self.files.key],
            log_path=directory / "log", is_ready=lambda: "Serving on" in (directory / "log").read_text(),
            scratch=directory / "tmp",
        )  # fmt: skip

    def check(self, ca_file: str | None) -> None:
        """Ask as the relay does."""
        Gateway(Credentials(url=self.url, token=self.token, ca_file=ca_file)).check()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    gateway = Encrypted(tmp_path_factory.mktemp("tls"))
    gateway.service.start()
    try:
        gateway.service.wait_until_ready()
        yield gateway
    finally:
        gateway.service.stop()


def test_the_notebooks_side_trusts_the_authority_that_it_was_told(encrypted: Encrypted) -> None:
    """Without it the sentence says how to tell it."""
    encrypted.check(encrypted.files.ca)
    with pytest.raises(GatewayRefused, match="--ca FILE") as refused:
        encrypted.check(None)
    assert not refused.value.is_passing
    with pytest.raises(GatewayRefused, match="--ca FILE"):
        fetch_status(Credentials(url=encrypted.url, token=encrypted.token))
    # a notebook that connects again would else wait for ever for a gateway that has renewed its certificate
    with pytest.raises(GatewayRefused, match="--ca FILE") as refused:
        run(Gateway(Credentials(url=encrypted.url, token=encrypted.token)).open("a-kernel", "a-notebook", seen=()))
    assert not refused.value.is_passing


def test_who_speaks_without_encryption_is_told_of_https(encrypted: Encrypted) -> None:
    """The network's word for it, a reset connection, would not say so."""
    plain = Credentials(url=encrypted.url.replace("https:", "http:"), token=encrypted.token)
    with pytest.raises(GatewayUnreachable, match=r"hung up .*; if the gateway encrypts, its address begins with https"):
        fetch_status(plain)


def test_install_keeps_the_authority_for_the_commands(
    encrypted: Encrypted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`install --ca` checks and keeps it; `status` uses it."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    install = ["install", "--gateway-url", encrypted.url, "--token", encrypted.token, "--prefix", str(tmp_path)]
    distrusted = run_here(*install).stderr
    assert distrusted.startswith("sharedkernel: nothing was installed: the certificate of the gateway at")
    assert "cannot be trusted" in distrusted
    assert distrusted.count("\n") == 1
    plain = encrypted.url.replace("https:", "http:")
    unencrypted = run_here("install", "--gateway-url", plain, "--token", "x", "--prefix", str(tmp_path)).stderr
    assert f"what answers at {plain} hung up" in unencrypted
    assert "its address begins with https://." in unencrypted
    assert "cannot be read as certificates" in run_here(*install, "--ca", str(tmp_path / "missing")).stderr
    assert run_here(*install, "--ca", encrypted.files.ca).returncode == 0
    kept = json.loads((tmp_path / "config" / "sharedkernel" / "shared-gpu.json").read_text())
    assert kept["ca_file"] == encrypted.files.ca
    # It got as far as the gateway's own sentence: there is no executor here.
    assert "no executor answers" in run_here("status").stderr


def test_the_pages_command_trusts_the_certificate_that_nobody_knows(
    encrypted: Encrypted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is copied, by the fingerprint of that one certificate; with another one nothing is installed."""
    for name, value in (("HOME", ""), ("JUPYTER_CONFIG_DIR", "config"), ("JUPYTER_DATA_DIR", "data")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("SHAREDKERNEL_TOKEN", encrypted.token)
    trusted = Credentials(url=encrypted.url, token=encrypted.token, ca_file=encrypted.files.ca)
    me = fetch(trusted, "/sharedkernel/page/me")
    assert me["checks_fingerprint"]
    name, *rest, option, fingerprint = shlex.split(me["install_command"].partition("\n")[2])
    assert (name, option) == ("sharedkernel", "--fingerprint")
    announced = (encrypted.directory / "log").read_text().partition("Serving on ")[2].splitlines()[0]
    assert announced.endswith(f" --fingerprint {fingerprint}")
    config = tmp_path / "config" / "sharedkernel"
    for wrong, status, sentence in (
        (fingerprint[::-1], 1, f"nothing was installed: the certificate of {encrypted.url} has another fingerprint"),
        (fingerprint[1:], 2, "is no SHA-256 fingerprint"),
    ):
        refused = run_here(*rest, option, wrong)
        assert (refused.returncode, refused.stderr.count("\n")) == (status, 1)
        assert sentence in refused.stderr
    assert "exclude each other" in run_here(*rest, option, fingerprint, "--ca", encrypted.files.ca).stderr
    assert not config.exists()
    capitals = ":".join(fingerprint[start : start + 2].upper() for start in range(0, len(fingerprint), 2))
    installed = run_here(*rest, option, capitals)
    assert installed.returncode == 0, installed.stderr
    kept = json.loads((config / "shared-gpu.json").read_text())
    assert kept["ca_file"] == str(config / "shared-gpu.pem")
    assert (config / "shared-gpu.pem").stat().st_mode & 0o777 == 0o600
    # It got as far as the gateway's own sentence: there is no executor here.
    assert "no executor answers" in run_here("status").stderr
    encrypted.check(kept["ca_file"])
    assert run_here(*rest).returncode == 0  # as with another token
    assert json.loads((config / "shared-gpu.json").read_text()) == kept
    assert run_here(*rest, "--ca", encrypted.files.ca).returncode == 0
    assert not (config / "shared-gpu.pem").exists()


def test_a_fingerprint_takes_an_encrypted_gateway_that_answers(tmp_path: Path) -> None:
    """The sentence says which of the two is missing."""
    for url, status, sentence in (
        ("http://127.0.0.1:1", 2, "is not encrypted, so it has no certificate"),
        ("https://127.0.0.1:1", 1, "shows no certificate (Connection refused)"),
    ):
        refused = run_here(
            "install", "--gateway-url", url, "--token", "x", "--fingerprint", "0" * 64, "--prefix", str(tmp_path)
        )
        assert (refused.returncode, sentence in refused.stderr) == (status, True), refused


@pytest.mark.heavy
@pytest.mark.parametrize("extensions", [(), ("basicConstraints=CA:FALSE",)])
def test_a_certificate_that_signed_itself_is_told_by_its_fingerprint(
    tmp_path: Path, extensions: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the admin guide makes one; not for a name that it is not for, which a fingerprint would not mend."""
    files = tmp_path / "gpu.crt", tmp_path / "gpu.key"
    added = [word for each in ("subjectAltName=DNS:gpu-host", *extensions) for word in ("-addext", each)]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=gpu-host"]
    subprocess.run([*make, "-out", files[0], "-keyout", files[1], *added], check=True, capture_output=True)
    certificate = Certificate(*map(str, files))
    fingerprint = certificate.fingerprint_to_check("gpu-host")
    show = ["openssl", "x509", "-in", str(files[0]), "-noout", "-fingerprint", "-sha256"]
    assert fingerprint is not None
    assert check_fingerprint(subprocess.check_output(show, text=True).partition("=")[2]) == fingerprint
    for name in ("other-host", "", ".."):
        assert certificate.fingerprint_to_check(name) is None
    other = issue(tmp_path / "other", "gpu-host")
    Path(files[0]).write_bytes(Path(other.certificate).read_bytes())
    Path(files[1]).write_bytes(Path(other.key).read_bytes())
    certificate.load()
    assert certificate.fingerprint_to_check("gpu-host") not in (None, fingerprint)
    certificate.load()
    monkeypatch.setenv("SSL_CERT_FILE", other.ca)  # which this system then trusts
    assert certificate.fingerprint_to_check("gpu-host") is None
    Path(files[0]).unlink()
    assert certificate.fingerprint_to_check("gone") is None


def test_a_renewed_certificate_is_shown_after_a_reload(encrypted: Encrypted, tmp_path: Path) -> None:
    """SIGHUP reads it; nothing is restarted."""
    renewed = issue(tmp_path / "renewed")
    process = encrypted.service.process
    assert process is not None
    for kind in ("certificate", "key"):
        Path(getattr(encrypted.files, kind)).write_bytes(Path(getattr(renewed, kind)).read_bytes())
    os.kill(process.pid, signal.SIGHUP)

    async def until_shown() -> None:
        while True:
            try:
                await asyncio.to_thread(encrypted.check, renewed.ca)
            except GatewayRefused:
                await asyncio.sleep(0.02)
            else:
                return

    run(until_shown())
    Path(encrypted.files.ca).write_bytes(Path(renewed.ca).read_bytes())
    assert process.poll() is None
