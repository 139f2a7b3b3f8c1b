"""Anything may be sent to the sockets in the runtime directory; who sends it is hung up on at worst."""

from __future__ import annotations

import contextlib
import socket

import pytest
from hypothesis import strategies as st

from sharedkernel import protocol
from sharedkernel.local_stack import LocalStack
from sharedkernel.paths import DESCRIPTOR_SOCKET, EXECUTOR_SOCKET, WARM_PARENT_SOCKET
from tests.fuzz.conftest import Neighbour
from tests.fuzz.fuzzing import fuzz, messages, streams
from tests.status.documents import to_json

_PATIENCE = 60.0
_GREETINGS = st.just([]) | st.sampled_from(["gateway", "command", "session", ""]).map(
    lambda role: [protocol.encode(protocol.Hello(version=protocol.PROTOCOL_VERSION, role=role))]
)
#: all but the request that every trusted peer may make
_MESSAGES = messages(protocol.ToExecutor, but=(protocol.StartSession,))


def say(stack: LocalStack, name: str, pieces: list[bytes], kind: int = socket.SOCK_STREAM) -> bytes:
    """Send all *pieces* to a socket and return what came back until the other end hung up."""
    received = b""
    with socket.socket(socket.AF_UNIX, kind) as peer:
        peer.settimeout(_PATIENCE)
        peer.connect(str(stack.runtime_directory / name))
        with contextlib.suppress(ConnectionError):  # hung up on by now
            for piece in pieces:
                peer.sendall(piece)
            peer.shutdown(socket.SHUT_WR)
            while data := peer.recv(1 << 17):
                received += data
    return received


@fuzz(examples=50, greeting=_GREETINGS, pieces=streams(_MESSAGES))
def check_control_socket(stack: LocalStack, greeting: list[bytes], pieces: list[bytes]) -> None:
    list(protocol.Decoder(protocol.ToGateway).feed(say(stack, EXECUTOR_SOCKET, greeting + pieces)))


def test_the_executor_serves_on_whatever_is_sent_to_it(stack: LocalStack, neighbour: Neighbour) -> None:
    """What comes back are whole messages, or nothing, and then the end of the connection."""
    neighbour.works()
    check_control_socket(stack)
    neighbour.works()
    assert {session["user"] for session in to_json(stack.status())["sessions"]} == {"grace"}


@fuzz(examples=8, request=messages(protocol.StartSession))
def check_start(stack: LocalStack, request: protocol.StartSession) -> None:
    hello = protocol.encode(protocol.Hello(version=protocol.PROTOCOL_VERSION, role="command"))
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_PATIENCE)
        peer.connect(str(stack.runtime_directory / EXECUTOR_SOCKET))
        decoder = protocol.Decoder(protocol.ToGateway)

        def ask(data: bytes) -> object:
            peer.sendall(data)
            return next(message for _ in iter(int, 1) for message in decoder.feed(peer.recv(1 << 16)))

        assert isinstance(ask(hello), protocol.Welcome)
        answer = ask(protocol.encode(request))
        assert isinstance(answer, protocol.SessionReady | protocol.Failed)
        if isinstance(answer, protocol.SessionReady):
            end = protocol.EndSession(request=1, session=request.session)
            assert ask(protocol.encode(end)) == protocol.Done(request=1)


@fuzz(
    examples=25,
    name=st.sampled_from([DESCRIPTOR_SOCKET, WARM_PARENT_SOCKET]),
    packets=streams(messages(protocol.ToDescriptorSocket | protocol.ToWarmParent, but=(protocol.Quit, protocol.Fork))),
)
def check_packets(stack: LocalStack, name: str, packets: list[bytes]) -> None:
    say(stack, name, [packet for packet in packets if packet], socket.SOCK_SEQPACKET)


def test_the_small_processes_live_on_whatever_is_sent_to_them(stack: LocalStack, neighbour: Neighbour) -> None:
    """Sessions start afterwards, and present ones have lost nothing.

    Whatever names, paths, variables and limits are asked for, there is an answer, and no session that nobody knows of.
    """
    check_packets(stack)
    neighbour.works()
    check_start(stack)
    neighbour.works()
    assert {session["user"] for session in to_json(stack.status())["sessions"]} == {"grace"}


@pytest.mark.parametrize("name", [EXECUTOR_SOCKET, WARM_PARENT_SOCKET])
@pytest.mark.parametrize(
    "body",
    [b"\x82\xa4type\xa4Fork\xa7process\xa2\xf3\xad", b"\x81\xa4type" + b"\x91" * 100_000],
    ids=["text that is none", "nesting without end"],
)
def test_what_the_decoder_trips_over_ends_a_connection_only(
    stack: LocalStack, neighbour: Neighbour, name: str, body: bytes
) -> None:
    """Errors that are not the decoder's own kind, either."""
    kind = socket.SOCK_STREAM if name == EXECUTOR_SOCKET else socket.SOCK_SEQPACKET
    before = (stack.runtime_directory / name).stat().st_ino
    say(stack, name, [len(body).to_bytes(4, "big") + body], kind)
    neighbour.works()
    assert (stack.runtime_directory / name).stat().st_ino == before
