"""A log of a session's recent messages, for clients that missed them.

Outputs are published, and so lost while no gateway listens; replies go to the gateway that asked, and are lost with it.
So copies of the newest messages stay here, up to a limit. A gateway asks for those that its client has missed, by the
last messages that this client has seen (:meth:`MessageLog.since`). A gateway can end before it has passed anything on
to a new client: for a client that has seen nothing, the log knows since when it is there (:meth:`MessageLog.meet`).

The copies are in a memory file and not on the heap, which the session's meter measures and its quota bounds.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from jupyter_client.session import DELIM

#: bytes kept
DEFAULT_LIMIT = 8 << 20
#: most clients of which it is known since when they are there
_MOST_CLIENTS = 64
#: asks for what was missed, on the control channel, and answers it
REQUEST, REPLY = "missed_messages_request", "missed_messages_reply"

_CHANNELS = ("iopub", "shell", "control")
#: what a message begins with in the file: its channel's place above, and the number of its frames; their sizes follow
_HEAD = "<BI"


@dataclass(frozen=True, slots=True)
class Missed:
    """The messages that a client has missed."""

    #: (channel, frames with signature) in the order in which they were sent
    messages: list[tuple[str, list[bytes]]]
    #: whether there was more, which is gone
    is_cut: bool


class MessageLog:
    """Keeps the newest messages; every method may be called by any thread.

    Parameters
    ----------
    limit_bytes
        How much is kept.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT) -> None:
        self._limit = limit_bytes
        self._file = os.memfd_create("sharedkernel-outbox", os.MFD_CLOEXEC)
        self._pid = os.getpid()
        # Reentrant: a signal's handler may say something in the middle of it.
        self._lock = threading.RLock()
        #: where each message begins in the file, oldest first
        self._starts: deque[int] = deque()
        #: messages so far, kept or not
        self._number = 0
        #: where the newest message ends
        self._end = 0
        #: topics that somebody listens to, and whether anybody ever did
        self._topics = 0
        self._was_heard = False
        #: number of the first message that no client was told; None: each is told as it is said
        self._unheard: int | None = 1
        #: number of the last message before each client came, by identity and successor's name, in the order of that
        self._began: dict[bytes, int] = {}

    def close(self) -> None:
        """Give up what is kept."""
        os.close(self._file)

    # --- keeping ------------------------------------------------------------------------------------------------------

    def attend(self, app: Any) -> None:
        """Keep from now on what the kernel application *app* sends."""
        outputs = app.iopub_thread
        outputs.send_multipart = self._keeping("iopub", outputs.send_multipart)
        outputs._xpub_stream.on_recv(self._noting_listeners(outputs._handle_subscription))
        for channel in ("shell", "control"):  # a question on stdin is asked by one client and answered by it, or never
            stream = getattr(app.kernel, f"{channel}_stream")
            stream.send_multipart = self._keeping(channel, stream.send_multipart)

    def keep(self, channel: str, frames: Sequence[Any]) -> None:
        """Keep a message; the oldest ones are dropped for it.

        Parameters
        ----------
        channel
            Jupyter's channel that it is sent on.
        frames
            Its parts, as they are sent.
        """
        views = [memoryview(frame) for frame in frames]
        sizes = [view.nbytes for view in views]
        head = struct.pack(f"{_HEAD}{len(frames)}I", _CHANNELS.index(channel), len(frames), *sizes)
        # as they lie in memory, as sockets send them: `join` refuses an array in Fortran's order
        data = b"".join([head, *(view if view.c_contiguous else view.tobytes(order="A") for view in views)])
        with self._lock:
            self._number += 1
            if len(data) > self._limit:
                self._starts.clear()  # what is missing must be at the beginning
                return
            start = self._make_room(len(data))
            os.pwrite(self._file, data, start)
            self._starts.append(start)
            self._end = start + len(data)

    def _make_room(self, size: int) -> int:
        """Forget the oldest messages until there are *size* bytes in one piece; return where."""
        start = self._end
        if start + size > self._limit:
            while self._starts and self._starts[0] >= start:  # behind the newest: what is oldest
                self._starts.popleft()
            start = 0
        while self._starts and start <= self._starts[0] < start + size:
            self._starts.popleft()
        return start

    def _keeping(self, channel: str, send: Callable[..., Any]) -> Callable[..., Any]:
        def keep_and_send(frames: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            if os.getpid() != self._pid:  # what a forked child says comes by way of this process
                return send(frames, *args, **kwargs)
            with self._lock:  # kept in the order in which they are sent
                self.keep(channel, frames)
                return send(frames, *args, **kwargs)

        return keep_and_send

    def _noting_listeners(self, handle: Callable[[list[bytes]], None]) -> Callable[[list[bytes]], None]:
        def note(frames: list[bytes]) -> None:
            for frame in frames:
                with self._lock:
                    self._topics += 1 if frame[:1] == b"\x01" else -1
                    if not self._was_heard:
                        # The gateway that started this session sends its client everything from the beginning. A later
                        # listener found it running, and may go before a client comes.
                        self._was_heard, self._unheard = True, None
                    if self._topics == 0 and self._unheard is None:
                        self._unheard = self._number + 1
            handle(frames)

        return note

    # --- giving back --------------------------------------------------------------------------------------------------

    def meet(self, identity: bytes) -> None:
        """Record that a request of the client *identity* has come; what is published from now on may be about it."""
        with self._lock:
            if identity not in self._began:
                self._begin(identity, self._number)

    def _begin(self, identity: bytes, after: int) -> None:
        self._began[identity] = min(after, self._began.get(identity, after))
        if len(self._began) > _MOST_CLIENTS:
            del self._began[next(iter(self._began))]

    def since(self, seen: Collection[str], identity: bytes, *, resumes: bool = False, successor: bytes = b"") -> Missed:
        """Return what the client *identity* has missed.

        Parameters
        ----------
        seen
            Ids of published messages that it has seen, the last ones. Where none of them is kept any more, it gets all
            that is; where none was this session's at all, what no other client was told.
        identity
            Whose replies it gets, too.
        resumes
            Whether it was connected before and *seen* is all that it has. If that is nothing of this session, it gets
            everything since it came; and it gets all replies that are kept, as it knows which it has. Any other may
            speak for a client that has them, and that refuses what comes twice: it gets those that nobody heard.
        successor
            Names it alone, if another one had its identity before. It was not connected before it first asked here, and
            gets no reply from before what it was told then.
        """
        client = identity + successor
        with self._lock:
            resumes = resumes and (not successor or client in self._began)
            first = self._number - len(self._starts) + 1
            after = self._last_seen(seen, first)
            is_cut = False
            if after is None:
                after = 0 if self._may_have_said(seen) else self._start_of(client, resumes=resumes)
                is_cut = first > after + 1
            if not (resumes and client in self._began):
                self._begin(client, after)
            if self._topics:  # listeners receive the rest by themselves
                self._unheard = None
            replied = after if not resumes else self._began[client] if successor else 0
            messages = []
            for number, (channel, frames) in enumerate(map(self._read, self._starts), first):
                if number > after if channel == "iopub" else number > replied and frames[0] == identity:
                    messages.append((channel, frames))
            return Missed(messages, is_cut)

    def reply_to(self, request_id: str, identity: bytes) -> list[bytes] | None:
        """Return the frames of the reply on the shell channel to a request of the client *identity*, if it is kept."""
        with self._lock:
            for channel, frames in map(self._read, reversed(self._starts)):
                if channel == "shell" and frames[0] == identity and _id_in(frames, 3) == request_id:
                    return frames
        return None

    def _start_of(self, client: bytes, *, resumes: bool) -> int:
        """Return the number of the message after which a client that has seen none is told everything."""
        if resumes and client in self._began:
            return self._began[client]
        return self._number if self._unheard is None else self._unheard - 1

    def _last_seen(self, seen: Collection[str], first: int) -> int | None:
        """Return the number of the newest message in *seen*; None if none of them is kept."""
        if seen:
            for back, (channel, frames) in enumerate(map(self._read, reversed(self._starts))):
                if channel == "iopub" and message_id(frames) in seen:
                    return first + len(self._starts) - 1 - back
        return None

    def _may_have_said(self, ids: Collection[str]) -> bool:
        """Whether one of *ids* begins as those of the messages do that are kept."""
        kept = map(self._read, self._starts if ids else ())
        authors = {_author(message_id(frames) or "") for channel, frames in kept if channel == "iopub"}
        return any(_author(message) in authors for message in ids)

    def _read(self, start: int) -> tuple[str, list[bytes]]:
        size = struct.calcsize(_HEAD)
        channel, count = struct.unpack(_HEAD, os.pread(self._file, size, start))
        start += size
        sizes = struct.unpack(f"<{count}I", os.pread(self._file, 4 * count, start))
        ends = list(accumulate(sizes, initial=0))
        data = os.pread(self._file, ends[-1], start + 4 * count)
        return _CHANNELS[channel], [data[begin:end] for begin, end in pairwise(ends)]


def _author(message: str) -> str:
    """Return what the ids of one process's messages have in common (jupyter_client's end in a number)."""
    return message.rpartition("_")[0]


def message_id(frames: Sequence[bytes]) -> str | None:
    """Return the id of a message.

    Parameters
    ----------
    frames
        Its parts, with signature and identities.

    Returns
    -------
    str | None
        None if it has none.
    """
    return _id_in(frames, 2)


def _id_in(frames: Sequence[bytes], place: int) -> str | None:
    """Return the id in the header that is so many frames behind the delimiter."""
    try:
        header = json.loads(frames[list(frames).index(DELIM) + place])
    except (ValueError, IndexError):
        return None
    found = header.get("msg_id") if isinstance(header, dict) else None
    return found if isinstance(found, str) else None
