"""Write what the pages know of the status document: its JSON schema, and TypeScript's interfaces made from it.

`make schema` runs it after a change of `sharedkernel/status/document.py`; a test compares its results with the files.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from sharedkernel.status.document import json_schema

FOLDER = Path(__file__).parent
SCHEMA = FOLDER / "statusschema.json"
TYPES = FOLDER / "src" / "statusdocument.ts"

_HEADER = """\
/**
 * The status document as the gateway sends it, made from `statusschema.json` by `make schema`: do not edit it.
 *
 * A field with a question mark may be absent. An older gateway may leave out others too, and a newer one may send more.
 */
"""
_PRIMITIVES = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def schema_text() -> str:
    """Return the text of :data:`SCHEMA`."""
    return json.dumps(json_schema(), indent=2) + "\n"


def types_text() -> str:
    """Return the text of :data:`TYPES`."""
    definitions: dict[str, Any] = json_schema()["$defs"]
    return _HEADER + "".join(_interface(name, definitions[name]) for name in sorted(definitions))


def _interface(name: str, definition: dict[str, Any]) -> str:
    summary = textwrap.shorten(definition["description"].partition("\n\n")[0].replace("None", "null"), 110)
    required = set(definition["required"])
    fields = [
        f"  {field}{'' if field in required or 'default' in schema else '?'}: {_type(schema)};\n"
        for field, schema in definition["properties"].items()
    ]
    return f"\n/** {summary} */\nexport interface I{name} {{\n{''.join(fields)}}}\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return "I" + schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    if schema["type"] == "array":
        return f"{_type(schema['items'])}[]"
    return _PRIMITIVES[schema["type"]]


if __name__ == "__main__":
    SCHEMA.write_text(schema_text())
    TYPES.write_text(types_text())
