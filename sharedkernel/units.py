"""Amounts of memory and time, and moments, as people write them.

Bytes are integers or text such as ``"8GiB"``, ``"500MiB"``, ``"2GB"`` or ``"25%"`` (of a whole that the caller names);
durations are seconds or text such as ``"250ms"``, ``"30s"``, ``"10m"``, ``"2h"``; moments are text such as ``"18:00"``.
"""

from __future__ import annotations

import datetime
import math
import re

from sharedkernel.errors import ConfigError

#: bytes of each unit of memory
_BYTES = {"B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _BYTES[f"{_letter}iB"] = 1024**_power
    _BYTES[f"{_letter}B"] = 1000**_power
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_ANY_CASE = {unit.lower(): size for unit, size in _BYTES.items()}
#: with so few digits that no unit makes it infinite
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d+)?) ?([A-Za-z%]*)")


def parse_bytes(value: int | str, *, whole: int | None = None) -> int:
    """Turn an amount of memory into bytes.

    Parameters
    ----------
    value
        An integer number of bytes, or text: a number and a unit in any case, with or without a space, or a percentage.
    whole
        What 100 % is, in bytes; None where a percentage makes no sense.

    Raises
    ------
    ConfigError
        With a sentence that says what was wrong and what is accepted.
    """
    percentage = "" if whole is None else ' or "25%"'
    hint = f'write a number of bytes or text like "8GiB", "500MiB"{percentage}'
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ConfigError(f"{value!r} is a negative amount of memory; {hint}.")
        return value
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{value!r} is not an amount of memory; {hint}.")
    number, unit = float(match[1]), match[2]
    if unit == "%":
        if whole is None:
            raise ConfigError(f"{value!r} is a percentage, which makes no sense here; {hint}.")
        if number > 100:
            raise ConfigError(f"{value!r} is more than the whole device; {hint}.")
        return int(whole * number / 100)
    if unit == "" and "." not in match[1]:
        return int(match[1])
    if unit.lower() not in _ANY_CASE:
        units = ", ".join(_BYTES)
        raise ConfigError(f"{value!r} has an unknown unit of memory; use one of {units}.")
    return int(number * _ANY_CASE[unit.lower()])


def parse_duration(value: float | str) -> float:
    """Turn a duration into seconds.

    Raises
    ------
    ConfigError
        With a sentence that says what was wrong and what is accepted.
    """
    hint = 'write a number of seconds or text like "250ms", "30s", "10m", "2h"'
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"{value!r} is not a duration; {hint}.")
        return float(value)
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in _SECONDS:
        raise ConfigError(f"{value!r} is not a duration; {hint}.")
    return float(match[1]) * _SECONDS[match[2]]


def parse_expiry(text: str, now: datetime.datetime) -> datetime.datetime:
    """Return the moment that *text* names.

    Parameters
    ----------
    text
        A time such as ``18:00``, today or else tomorrow; a date, which is included, with or without a time; or a
        duration such as ``12h`` or ``90d``.
    now
        With a time zone, which is that of the text.

    Raises
    ------
    ConfigError
        When it is none of these, or has passed.
    """
    text = text.strip()
    try:
        if re.fullmatch(r"\d{1,2}:\d\d", text):
            hour, minute = map(int, text.split(":"))
            moment = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return moment if moment > now else moment + datetime.timedelta(days=1)
        if re.match(r"\d{4}-", text):
            moment = datetime.datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
            moment += datetime.timedelta(days=len(text) == len("2026-12-31"))
        else:
            moment = now + datetime.timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError, ConfigError):
        raise ConfigError(
            f'{text!r} is no moment; write a time such as 18:00, a date such as 2026-12-31, "2026-12-31 18:00", or a '
            "duration such as 12h or 90d."
        ) from None
    if moment <= now:
        raise ConfigError(f"{text!r} has passed already.")
    return moment


def round_up(size: int, step: int) -> int:
    """Return the smallest multiple of *step* that is at least *size*."""
    return -(-size // step) * step


def format_bytes(amount: float) -> str:
    """Return *amount* bytes as short text for people, such as ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or abs(amount) >= 100 else f"{amount:.1f} {unit}"


def format_seconds(seconds: float) -> str:
    """Return a duration as short text for people, such as ``"350 ms"`` or ``"2 m 5 s"``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m"
