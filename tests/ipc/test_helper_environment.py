"""What of an executor's environment its sessions see."""

from __future__ import annotations

import pytest

from sharedkernel.ipc.helper_process import scrubbed_environment

PASSED = {
    "PIP_INDEX_URL": "https://mirror.example.org/simple",
    "https_proxy": "http://proxy.example.org:3128",
    "NO_PROXY": "localhost,.example.org",
    "SSL_CERT_FILE": "/etc/ssl/own.pem",
    "HF_HOME": "/data/models",
    "TRITON_LIBCUDA_PATH": "/usr/local/nvidia/lib64",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
}
KEPT = {
    "PIP_INDEX_URL": "https://ada:word@mirror.example.org/simple",
    "HTTPS_PROXY": "http://ada@proxy.example.org:3128",
    "HF_TOKEN": "hf_abc",
    "PIP_PASSWORD": "word",
    "UV_PUBLISH_TOKEN": "abc",
    "TORCH_API_KEY": "abc",
    "DATABASE_URL": "db.example.org",
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without what this machine has set."""
    for name in (*PASSED, *KEPT, "SHAREDKERNEL_SESSION_VARIABLES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", PASSED)
def test_what_programs_need_is_passed_on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Mirrors, proxies, certificates, and where libraries have their files."""
    monkeypatch.setenv(name, PASSED[name])
    assert scrubbed_environment()[name] == PASSED[name]


@pytest.mark.parametrize("name", KEPT)
def test_secrets_stay_with_the_executor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By their names, or as parts of an address; and whatever else there is."""
    monkeypatch.setenv(name, KEPT[name])
    assert name not in scrubbed_environment()


def test_the_admin_names_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also such as would be kept."""
    monkeypatch.setenv("DATABASE_URL", "db.example.org")
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    monkeypatch.setenv("SHAREDKERNEL_SESSION_VARIABLES", "DATABASE_URL, HF_TOKEN,MISSING")
    passed = scrubbed_environment()
    assert (passed["DATABASE_URL"], passed["HF_TOKEN"], "MISSING" in passed) == ("db.example.org", "hf_abc", False)
