"""The figures that people see of devices, users and sessions: one entry each, for all who show them.

The tables of commands, the metrics and the panels (by `labextension/statustypes.py`) are made from these entries. To
show another figure, add its field to `document.py`, its source to `executor/control/status_builder.py` and its entry
here, and run `make schema`. The metrics read those of devices, and bytes of users. Sentences and states are no figures:
they are in `text.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any

from sharedkernel.status.text import NOTHING, RUNNING, about
from sharedkernel.units import format_bytes, format_seconds


class Place(Flag):
    """The places where figures are shown."""

    #: a column of the table that `status` prints, or that `top` shows
    STATUS = auto()
    TOP = auto()
    #: a metric for Prometheus; a user's are one metric, by kind
    METRIC = auto()
    #: the panels' line about a device; for a session, its "Time left". The amount beside a name; and, as in the
    #: widgets' text, what that is made of
    LINE = auto()
    BESIDE = auto()
    DETAILS = auto()


class Unit(Enum):
    """The format of a number: Python's format, and the characters of the longest."""

    BYTES = format_bytes, 8
    SECONDS = format_seconds, 9
    #: seconds, as exact as a prediction is
    ABOUT = about, 5
    NUMBER = "{:g}".format, 5
    COUNT = "{:.0f}".format, 5
    #: of parts, 0 to 1
    PERCENT = (lambda part: f"{100 * part:.0f} %"), 5

    def __init__(self, write: Callable[[float], str], width: int) -> None:
        self.write = write
        self.width = width


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure."""

    #: heading of its column, and its name in TypeScript: one word
    name: str
    unit: Unit
    #: those of the document's entry that it is the sum of
    fields: tuple[str, ...]
    places: Place
    #: how a line says it, around the number
    words: str = "{}"
    #: field of what it is a part of, which a line says where it is known
    whole: str = ""
    #: what the metric is
    help: str = ""
    #: whether an entry's is a figure at all
    known: Callable[[Any], bool] = lambda entry: True

    def value(self, entry: object) -> float | None:
        """Return the number of an entry of the document; None: it is not known."""
        amounts = [amount for field in self.fields if isinstance(amount := getattr(entry, field, None), int | float)]
        return sum(amounts) if amounts and self.known(entry) else None

    def text(self, entry: object) -> str:
        """Return the number as it is written in a column."""
        value = self.value(entry)
        return NOTHING if value is None else self.unit.write(value)

    def sentence(self, entry: object) -> str | None:
        """Return the number in words; None: it is not known."""
        value, whole = self.value(entry), getattr(entry, self.whole, None)
        parts = [self.unit.write(part) for part in (value, whole) if isinstance(part, int | float)]
        return None if value is None else self.words.format(" of ".join(parts))

    @property
    def width(self) -> int:
        """Characters of its column."""
        return max(len(self.name), self.unit.width)


_BYTES, _COUNT = Unit.BYTES, Unit.COUNT
_STATUS, _TOP, _METRIC, _LINE, _BESIDE, _DETAILS = Place
_IN_USE = ("persistent_bytes", "ephemeral_bytes", "framework_bytes", "shelf_bytes")

#: what a session or a user has on the device now: all users' come to the device's `used_bytes`
MEMORY = Figure("memory", _BYTES, _IN_USE, _TOP | _BESIDE)
IDLE = Figure("idle", Unit.ABOUT, ("idle_seconds",), _TOP, known=lambda session: session.state not in RUNNING)
LEFT = Figure("left", Unit.ABOUT, ("time_left_seconds",), _TOP | _LINE, "about {} left")
_SERVICE = ("attained_service_seconds",)

DEVICE = (
    Figure("capacity", _BYTES, ("capacity_bytes",), _METRIC, help="Memory of the device."),
    Figure("reserve", _BYTES, ("reserve_bytes",), _METRIC, help="Memory of the device that is held back."),
    Figure("used", _BYTES, ("used_bytes",), _METRIC, help="Memory of the device in use."),
    Figure("utilisation", Unit.PERCENT, ("utilisation",), _LINE | _METRIC, "{} busy",
           help="Part of the time in which a kernel ran on the device, 0 to 1."),
    Figure("temperature", _COUNT, ("temperature_celsius",), _LINE | _METRIC, "{} °C",
           help="Temperature of the device."),
    Figure("power", _COUNT, ("power_watts",), _LINE | _METRIC, "{} W", "power_limit_watts",
           help="What the device draws."),
    Figure("limit", _COUNT, ("power_limit_watts",), _METRIC, help="The most that the device may draw."),
)  # fmt: skip
USER = (
    Figure("share", Unit.NUMBER, ("share",), _STATUS | _TOP),
    Figure("persistent", _BYTES, ("persistent_bytes",), _STATUS | _METRIC | _DETAILS, "{} persistent"),
    Figure("ephemeral", _BYTES, ("ephemeral_bytes",), _STATUS | _METRIC | _DETAILS, "{} ephemeral"),
    Figure("framework", _BYTES, ("framework_bytes",), _STATUS | _METRIC | _DETAILS, "{} framework"),
    Figure("shelf", _BYTES, ("shelf_bytes",), _METRIC),
    Figure("offloaded", _BYTES, ("offloaded_bytes",), _METRIC),
    Figure("files", _BYTES, ("server_bytes",), _METRIC),
    MEMORY,
    Figure("charged", _BYTES, ("quota_used_bytes",), _TOP),
    Figure("quota", _BYTES, ("quota_bytes",), _STATUS | _TOP),
    Figure("service", Unit.SECONDS, _SERVICE, _STATUS | _TOP),
    Figure("wait p95", Unit.SECONDS, ("wait_p95_seconds",), _STATUS | _TOP),
)
SESSION = (
    Figure("persistent", _BYTES, ("persistent_bytes",), _STATUS | _DETAILS, "{} persistent"),
    Figure("ephemeral", _BYTES, ("ephemeral_bytes",), _STATUS | _DETAILS, "{} ephemeral"),
    Figure("framework", _BYTES, ("framework_bytes",), _DETAILS, "{} framework"),
    MEMORY,
    Figure("iterations", _COUNT, ("iterations",), _STATUS),
    Figure("service", Unit.SECONDS, _SERVICE, _TOP),
    LEFT,
    IDLE,
)


def shown(figures: Iterable[Figure], place: Place) -> list[Figure]:
    """Return those of *figures* that are shown in a place, in their order."""
    return [figure for figure in figures if place in figure.places]


def sentences(figures: Iterable[Figure], place: Place, entry: object) -> list[str]:
    """Return what is said in a place of an entry of the document, as far as it is known."""
    found = (figure.sentence(entry) for figure in shown(figures, place))
    return [sentence for sentence in found if sentence is not None]


def memory_by_kind(session: object) -> str:
    """Return a session's memory as ``512 MiB persistent + 96.0 MiB ephemeral + 31.0 MiB framework``."""
    return " + ".join(sentences(SESSION, Place.DETAILS, session))
