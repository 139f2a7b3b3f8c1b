"""Both wires' framing, against the libraries that speak them at the other ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session
from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1, serialize_msg_to_ws_v1

from sharedkernel.errors import ConfigError, ProtocolError
from sharedkernel.jupyter import wire

PARTS = st.lists(st.binary(max_size=100), min_size=4, max_size=8)
SIGNER = wire.Signer(b"secret", "hmac-sha256")


@given(st.sampled_from(wire.CHANNELS), PARTS)
def test_the_gateway_reads_what_is_written_for_it(channel: str, parts: list[bytes]) -> None:
    """And the other way round: jupyter_server's own framing is the reference."""
    assert deserialize_msg_from_ws_v1(wire.to_websocket(channel, parts)) == (channel, parts)
    assert wire.from_websocket(serialize_msg_to_ws_v1(parts, channel)) == (channel, parts)


@given(st.binary(max_size=200))
def test_noise_on_the_websocket_is_refused(noise: bytes) -> None:
    """Whatever comes, it is a message or a ProtocolError."""
    try:
        channel, parts = wire.from_websocket(noise)
    except ProtocolError:
        return
    assert channel in wire.CHANNELS
    assert len(parts) >= 4


@given(PARTS, st.data())
def test_a_cut_or_stretched_frame_is_refused_or_whole(parts: list[bytes], data: st.DataObject) -> None:
    """A table of offsets that does not fit its frame never yields pieces of other pieces."""
    frame = wire.to_websocket("shell", parts)
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    with pytest.raises(ProtocolError):
        wire.from_websocket(cut)


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=2), PARTS)
def test_zmq_frames_come_back_as_they_were(identities: list[bytes], parts: list[bytes]) -> None:
    """Identities, parts and buffers are told apart again."""
    if b"<IDS|MSG>" not in identities:
        assert wire.from_frames(wire.to_frames(identities, parts, SIGNER), SIGNER) == (identities, parts)


def test_a_jupyter_client_accepts_our_messages_and_we_its() -> None:
    """The signatures are those of jupyter_client."""
    session = Session(key=b"secret")
    theirs = session.serialize(session.msg("kernel_info_request"))
    _, parts = wire.from_frames(theirs, SIGNER)
    ours = wire.new_message("status", {"execution_state": "idle"}, session="relay", parent=parts[0])
    _, frames = session.feed_identities(wire.to_frames([b"topic"], ours, SIGNER))
    message = session.deserialize(frames)
    assert message["content"] == {"execution_state": "idle"}
    assert message["parent_header"]["msg_type"] == "kernel_info_request"


@pytest.mark.parametrize("at", range(1, 6))
def test_a_changed_message_is_refused(at: int) -> None:
    """One flipped bit in the signature or in any JSON part is noticed."""
    frames = wire.to_frames([], [b"header", b"parent", b"metadata", b"content"], SIGNER)
    frames[at] = bytes([frames[at][0] ^ 1]) + frames[at][1:]
    with pytest.raises(ProtocolError, match="signature"):
        wire.from_frames(frames, SIGNER)


def test_without_a_key_nothing_is_signed() -> None:
    """An empty key in the connection file switches signatures off, says Jupyter."""
    signer = wire.Signer(b"", "hmac-sha256")
    frames = wire.to_frames([], [b"{}"] * 4, signer)
    assert frames[1] == b""
    assert wire.from_frames(frames, signer) == ([], [b"{}"] * 4)


@pytest.mark.parametrize("scheme", ["none", "hmac-rot13", ""])
def test_an_unknown_signature_scheme_is_said(scheme: str) -> None:
    """Rather than to sign with something that the client cannot check."""
    with pytest.raises(ConfigError, match="signature scheme"):
        wire.Signer(b"secret", scheme)


@pytest.mark.parametrize("frames", [[], [b"no", b"delimiter"], [b"<IDS|MSG>", b"signature", b"{}"]])
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    """Too little on a socket harms nothing."""
    with pytest.raises(ProtocolError):
        wire.from_frames(frames, SIGNER)


@pytest.mark.parametrize("part", [b"", b"[]", b"\xff", b'"text"', b"{"])
def test_a_header_that_is_no_object_is_refused(part: bytes) -> None:
    """Nothing but a JSON object is one."""
    with pytest.raises(ProtocolError):
        wire.read_object(part)
