"""How the widgets look: colours that follow the front end's theme, and the few elements that they are made of.

Colours are JupyterLab's own variables, with fallbacks that can be told apart on light and on dark ground where there is
no JupyterLab; those of users come from the gateway, in the status document. Text takes the colour of its surroundings.
Colour never says what no word does: each has its word in a legend or in the row it belongs to.

Everything that is shown is escaped here, since names come from other people and a front end runs the HTML of a kernel.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from sharedkernel.status.text import safe_text

OWN = "var(--jp-brand-color1, #1e88e5)"
OWN_OTHER = "var(--jp-brand-color2, #64b5f6)"
OTHERS = "var(--jp-ui-font-color3, #9e9e9e)"
EPHEMERAL = "var(--jp-success-color1, #43a047)"
WAITING = "var(--jp-warn-color1, #ef6c00)"
AWAY = "var(--jp-info-color1, #0097a7)"
#: for a legend's entry that has no colour, so that its word stands below the others
NONE = "transparent"
_GROUND = "var(--jp-layout-color2, rgba(128, 128, 128, 0.15))"
_LINE = "var(--jp-border-color2, rgba(128, 128, 128, 0.4))"
_FAINT = "var(--jp-ui-font-color2, #757575)"

#: eighths of a full block, from nothing to all
_BLOCKS = " ▁▂▃▄▅▆▇█"
_CELL = "padding: 0 1.2em 0 0; text-align: left; background: none; border: none"


def escape(text: object) -> str:
    """Return *text* as HTML that shows it, with everything written out that is not printable."""
    return html.escape(safe_text(text), quote=True)


def paler(colour: str) -> str:
    """Return a user's *colour*, half as strong."""
    return f"{colour}80"


def panel(label: str, *parts: str) -> str:
    """Return *parts*, which are HTML, as one piece whose name for screen readers is *label*."""
    return f'<div role="group" aria-label="{escape(label)}" style="line-height: 1.5">{"".join(parts)}</div>'


def line(text: str, *, faint: bool = False, bold: bool = False) -> str:
    """Return text as a line of its own.

    Parameters
    ----------
    text
        Is escaped.
    faint, bold
        How it looks; a faint line is not bold.
    """
    style = f"color: {_FAINT}" if faint else "font-weight: 600" if bold else ""
    return f'<div style="{style}">{escape(text)}</div>' if style else f"<div>{escape(text)}</div>"


def bar(parts: Iterable[tuple[str, float, str]], label: str) -> str:
    """Return a bar.

    Parameters
    ----------
    parts
        Colour, part of the whole (0 to 1), and what it is, for who points at it.
    label
        What the bar says, for screen readers.
    """
    inner = "".join(
        f'<div title="{escape(meaning)}" style="width: {100 * min(max(part, 0.0), 1.0):.2f}%; background: {colour}">'
        "</div>"
        for colour, part, meaning in parts
    )
    return (
        f'<div role="img" aria-label="{escape(label)}" style="display: flex; height: 0.9em; max-width: 40em; '
        f'overflow: hidden; background: {_GROUND}; border: 1px solid {_LINE}">{inner}</div>'
    )


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table.

    Parameters
    ----------
    caption
        For screen readers.
    headings
        Of the columns.
    rows
        Their cells, as HTML.
    """
    head = "".join(f'<th scope="col" style="{_CELL}">{escape(heading)}</th>' for heading in headings)
    head = f"<tr>{head}</tr>" if any(headings) else ""
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows
    )  # fmt: skip
    return f'<table aria-label="{escape(caption)}" style="border: none; margin: 0">{head}{body}</table>'


def key(colour: str, word: str) -> str:
    """Return an entry of a legend.

    Parameters
    ----------
    colour
        Of the square before the word.
    word
        Is escaped.
    """
    return f'<span aria-hidden="true" style="color: {colour}">■</span> {escape(word)}'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Return what colours mean, in one line."""
    return f"<div>{' &nbsp; '.join(key(colour, word) for colour, word in entries)}</div>"


def sparkline(values: Sequence[float], top: float, label: str) -> str:
    """Return a small curve.

    Parameters
    ----------
    values
        Oldest first.
    top
        The value at the upper edge.
    label
        What the curve says, for screen readers.
    """
    width, height = 240.0, 32.0
    step = width / max(len(values) - 1, 1)
    points = [
        (place * step, height * (1 - min(value / top, 1.0) if top else 1.0)) for place, value in enumerate(values)
    ]
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width:.0f} {height:.0f}" width="240" height="32" '
        f'style="display: block; background: {_GROUND}; border: 1px solid {_LINE}">'
        f'<polygon points="0,{height:.0f} {curve} {width:.0f},{height:.0f}" style="fill: {OWN}; opacity: 0.25">'
        "</polygon>"
        f'<polyline points="{curve}" style="fill: none; stroke: {OWN}; stroke-width: 1.5"></polyline></svg>'
    )


def blocks(values: Sequence[float], top: float) -> str:
    """Return values as a line of block characters; every value above zero is visible.

    Parameters
    ----------
    values
        One character each.
    top
        The value of a full block.
    """
    if not top:
        return _BLOCKS[0] * len(values)
    places = (0 if value <= 0 else max(1, round(8 * min(value / top, 1.0))) for value in values)
    return "".join(_BLOCKS[place] for place in places)


def strip_ground(width: float, height: float, y: float) -> str:
    """Return the ground of a row of a picture, as SVG.

    Parameters
    ----------
    width, height
        Of the row, in the picture's units.
    y
        Its upper edge.
    """
    return f'<rect x="0" y="{y:g}" width="{width:g}" height="{height:g}" style="fill: {_GROUND}"></rect>'


def caption(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    """Return a word in a picture, as SVG.

    Parameters
    ----------
    x, y
        Where it stands, in the picture's units.
    text
        Is escaped.
    anchor
        Which part of it is at *x*: ``start``, ``middle`` or ``end``.
    """
    style = "fill: currentColor; font-size: 11px"
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" style="{style}">{escape(text)}</text>'
