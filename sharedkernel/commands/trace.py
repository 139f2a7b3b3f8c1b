"""``sharedkernel trace``: a timeline of lanes and sessions in a file that Perfetto opens.

On the machine with the device it comes from the executor's own record, exact and after the fact; everywhere else from
the gateway, while it happens.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

from traitlets import Bool, TraitError, Unicode, validate

from sharedkernel.commands.base import fail
from sharedkernel.commands.gateway_options import GatewayCommandApp
from sharedkernel.commands.trace_document import Recording, trace_document
from sharedkernel.commands.trace_live import record_live
from sharedkernel.commands.trace_log import record_from_log
from sharedkernel.errors import ConfigError
from sharedkernel.gateway_client import fetch_status
from sharedkernel.paths import default_runtime_directory
from sharedkernel.units import format_seconds, parse_duration


class TraceApp(GatewayCommandApp):
    """Writes a recording as Trace Event JSON."""

    name = "trace"
    description = """
        Write who ran in which lane, who waited, what was offloaded and restored, as a file that
        https://ui.perfetto.dev opens (it stays in your browser).

        Without --seconds it tells what the executor on this machine recorded. With --seconds it asks the gateway
        what happens from now on.
    """
    examples = """
        sharedkernel trace --out last.json                        # the last ten minutes of this machine's executor
        sharedkernel trace --out all.json --last 0 --runtime-dir /run/sharedkernel
        sharedkernel trace --out now.json --seconds 30            # from the gateway, as far as you may see
        sharedkernel trace --out now.json --seconds 30 --gateway-url http://127.0.0.1:8585 --token TOKEN
    """
    aliases: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        **GatewayCommandApp.aliases,
        "out": "TraceApp.out",
        "runtime-dir": "TraceApp.runtime_dir",
        "last": "TraceApp.last",
        "seconds": "TraceApp.seconds",
    }
    flags: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        "json": ({"TraceApp": {"as_json": True}}, "Print what was written as JSON instead of a sentence.")
    }

    out = Unicode(help="The file to write.").tag(config=True)
    runtime_dir = Unicode(help="The executor's private directory. Default: the one it takes by itself.").tag(
        config=True
    )
    last = Unicode("10m", help='How much of the executor\'s record, such as "90s" or "2h"; 0: all of it.').tag(
        config=True
    )
    seconds = Unicode(help='Record what happens from now on, for so long, such as 10 or "5m".').tag(config=True)
    as_json = Bool(False, help="Print what was written as JSON instead of a sentence.").tag(config=True)

    @validate("last", "seconds")
    def _check_duration(self, proposal: Any) -> str:
        text: str = proposal["value"]
        try:
            if text and not _parse(text) and proposal["trait"].name == "seconds":
                raise TraitError("--seconds must be more than 0")
        except ConfigError as error:
            raise TraitError(f"--{proposal['trait'].name}: {error}") from None
        return text

    def start(self) -> None:
        """Record, write, and say what was written.

        Raises
        ------
        SystemExit
            With 2 when no file is named, 1 when it cannot be written.
        """
        if not self.out:
            fail("name the file to write with --out, such as `sharedkernel trace --out trace.json`.", status=2)
        recording = self._record()
        self._write(trace_document(recording))
        duration = recording.end - recording.begin
        num_sessions = len({span.session for span in recording.spans})
        num_lanes = len({span.lane for span in recording.spans if span.lane is not None})
        if self.as_json:
            found = {"file": self.out, "seconds": duration, "spans": len(recording.spans), "sessions": num_sessions}
            print(json.dumps({**found, "lanes": num_lanes}))  # noqa: T201
        else:
            print(  # noqa: T201
                f"Wrote {format_seconds(duration)} with {num_sessions} sessions and {num_lanes} lanes to {self.out}. "
                "Open it at https://ui.perfetto.dev."
            )

    def _record(self) -> Recording:
        if self.seconds:
            credentials = self.credentials()
            return record_live(
                lambda: fetch_status(credentials.url, credentials.token, ca_file=credentials.ca_file),
                _parse(self.seconds),
            )
        if not self.runtime_dir and not hasattr(os, "getuid"):
            fail("there is no executor's record on this system; record what happens now with --seconds 10.")
        directory = Path(self.runtime_dir) if self.runtime_dir else default_runtime_directory()
        return record_from_log(directory, last=_parse(self.last))

    def _write(self, document: dict[str, Any]) -> None:
        path = Path(self.out)
        partial = path.with_name(f"{path.name}.partial")
        try:
            with partial.open("w") as file:
                json.dump(document, file, allow_nan=False, separators=(",", ":"))
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            fail(f"the trace cannot be written to {self.out}: {error.strerror}.")


def _parse(text: str) -> float:
    """Return a duration; a bare number is seconds."""
    return parse_duration(float(text) if text.replace(".", "", 1).isdigit() else text)
