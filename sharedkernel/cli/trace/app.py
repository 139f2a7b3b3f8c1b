"""``sharedkernel trace``: a timeline of lanes and sessions in a file that Perfetto opens.

On the machine with the device it comes from the executor's own record, exact and after the fact; everywhere else from
the gateway's timeline.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from traitlets import Bool, TraitError, Unicode, validate

from sharedkernel.cli.base import GatewayCommandApp, fail
from sharedkernel.cli.trace.document import Recording, trace_document
from sharedkernel.cli.trace.live import record_live
from sharedkernel.cli.trace.log import record_from_log, recorded_directories
from sharedkernel.client.gateway.connection import fetch
from sharedkernel.client.gateway.status import fetch_status
from sharedkernel.errors import ConfigError
from sharedkernel.paths import default_runtime_directory
from sharedkernel.system.atomic_file import replace_file
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
        sharedkernel trace --out gpu1.json --device cuda:1
        sharedkernel trace --out now.json --seconds 30            # from the gateway, as far as you may see
        sharedkernel trace --out now.json --seconds 30 --gateway-url http://127.0.0.1:8585 --token TOKEN
    """

    out = Unicode(help="The file to write.").tag(config=True)
    runtime_dir = Unicode(help="The executor's private directory. Default: the one it takes by itself.").tag(
        config=True
    )
    device = Unicode(
        help="Only this one of several devices, as the configuration names it, such as cuda:1; of several hosts, "
        "such as h2/cuda:1, or h2 for all of one host. Default: all."
    ).tag(config=True)
    last = Unicode("10m", help='How much of the executor\'s record, such as "90s" or "2h"; 0: all of it.').tag(
        config=True
    )
    seconds = Unicode(help='Record what happens from now on, for so long, such as 10 or "5m".').tag(config=True)
    as_json = Bool(False, help="Print what was written as JSON instead of a sentence.").tag(config=True, option="json")

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
        recordings = self._record()
        self._write(trace_document(*recordings))
        seconds = max(recording.end - recording.begin for recording in recordings)
        spans = [(recording.device, span) for recording in recordings for span in recording.spans]
        counts = {
            **({"hosts": len(hosts)} if (hosts := {recording.host for recording in recordings} - {""}) else {}),
            "devices": len(recordings),
            "sessions": len({span.session for _, span in spans}),
            "lanes": len({(device, span.lane) for device, span in spans if span.lane is not None}),
        }
        if self.as_json:
            print(json.dumps({"file": self.out, "seconds": seconds, "spans": len(spans), **counts}))  # noqa: T201
        else:
            told = " and ".join(
                ", ".join(_counted(number, name) for name, number in counts.items() if number).rsplit(", ", 1)
            )
            print(  # noqa: T201
                f"Wrote {format_seconds(seconds)} with {told} to {self.out}. Open it at https://ui.perfetto.dev."
            )

    def _record(self) -> list[Recording]:
        if self.seconds:
            credentials = self.credentials()
            return record_live(
                lambda: fetch_status(credentials),
                lambda path: fetch(credentials, path),
                _parse(self.seconds),
                device=self.device,
            )
        if not self.runtime_dir and not hasattr(os, "getuid"):
            fail("there is no executor's record on this system; record what happens now with --seconds 10.")
        directory = Path(self.runtime_dir) if self.runtime_dir else default_runtime_directory()
        return [
            replace(record_from_log(path, last=_parse(self.last)), device=name)
            for name, path in recorded_directories(directory, self.device).items()
        ]

    def _write(self, document: dict[str, Any]) -> None:
        text = json.dumps(document, allow_nan=False, separators=(",", ":"))
        try:
            replace_file(Path(self.out), text, mode=None, durable=False)
        except OSError as error:
            fail(f"the trace cannot be written to {self.out}: {error.strerror}.")


def _counted(number: int, plural: str) -> str:
    return f"{number} {plural.removesuffix('s') if number == 1 else plural}"


def _parse(text: str) -> float:
    """Return a duration; a bare number is seconds."""
    return parse_duration(float(text) if text.replace(".", "", 1).isdigit() else text)
