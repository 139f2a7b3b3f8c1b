"""What a cell has printed, without warnings of the interpreter and of libraries, in which their versions differ.

Python warns of forks where there are threads from 3.12 on, torch of its own parts that are deprecated, and of
interpreters that it is slower on. A stock kernel prints the same.
"""

from __future__ import annotations

import re
from typing import Any

#: as `warnings` prints one: place, category and message, then the line of source, if there is one
_WARNING = re.compile(r"^\S[^\n]*:\d+: \w*Warning: [^\n]*\n(?:  [^\n]*\n)?", re.MULTILINE)


def printed(stream: dict[str, Any]) -> str:
    """Return the text of a stream message, without warnings.

    Parameters
    ----------
    stream
        The message's content.
    """
    text: str = stream["text"]
    return _WARNING.sub("", text) if stream["name"] == "stderr" else text
