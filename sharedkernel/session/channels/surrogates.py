"""Text in messages that UTF-8 does not have: lone surrogates, which a stock kernel loses, and the reply with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jupyter_client.jsonutil import json_clean, json_default


def replacing_surrogates(pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return *pack*, which encodes a part of a message, with U+FFFD for each lone surrogate that it cannot encode."""

    def pack_any(part: Any) -> bytes:
        try:
            return pack(part)
        except UnicodeEncodeError:
            text = json.dumps(json_clean(part), default=json_default, ensure_ascii=False, allow_nan=False)
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()

    return pack_any
