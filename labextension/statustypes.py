"""Write what the pages know of the status document and its figures, as TypeScript.

`make schema` runs it after a change of `sharedkernel/status/document.py` or `figures.py`; a test compares its results
with the files.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from sharedkernel.status.document import DeviceStatus, SessionStatus, StatusDocument, UserStatus
from sharedkernel.status.figures import DEVICE, SESSION, USER, Figure, Place

SOURCES = Path(__file__).parent / "src"

_DOCUMENT = """\
/**
 * The status document as the pages read it: made by `make schema`, do not edit it.
 *
 * What an older gateway leaves out has its default, as in Python; what may be absent or unknown is null.
 */

import { isAmount, isFlag, isNumber, isText, list, maybe, need, or, Read, record } from './reading';
"""
_FIGURES = """\
/** The figures of the status document that the pages show: made by `make schema`, do not edit it. */

import type { IFigure } from './format';
import type { IDeviceStatus, ISessionStatus, IUserStatus } from './statusdocument';
"""
_CHECKS = {"string": "isText", "integer": "isAmount", "number": "isAmount", "boolean": "isFlag"}


def texts() -> dict[Path, str]:
    """Return the text of each file."""
    return {SOURCES / "statusdocument.ts": _document_text(), SOURCES / "figures.ts": _figures_text()}


def _document_text() -> str:
    definitions: dict[str, Any] = msgspec.json.schema(StatusDocument)["$defs"]
    written: dict[str, str] = {}

    def write(name: str) -> None:
        """Write a struct, after those that it has."""
        for other in definitions:
            if other not in written and f"$defs/{other}'" in str(definitions[name]["properties"]):
                write(other)
        written[name] = _reader(name, definitions[name])

    write("StatusDocument")
    return _DOCUMENT + "".join(written.values())


def _reader(name: str, definition: dict[str, Any]) -> str:
    summary = textwrap.shorten(definition["description"].partition("\n\n")[0].replace("None", "null"), 110)
    required = set(definition["required"])
    fields = ",\n".join(
        f"  {field}: {_field(schema, is_required=field in required)}"
        for field, schema in definition["properties"].items()
    )
    return (
        f"\n/** {summary} */\nexport type I{name} = Read<typeof read{name}>;\n"
        f"export const read{name} = record({{\n{fields}\n}});\n"
    )


def _field(schema: dict[str, Any], *, is_required: bool = True) -> str:
    if "$ref" in schema:
        reader = "read" + schema["$ref"].rpartition("/")[2]
        return reader if is_required else f"maybe({reader})"
    if schema.get("type") == "array":
        return f"list({_field(schema['items'])})"
    kinds = [kind["type"] for kind in schema.get("anyOf", [schema])]
    check, default = _CHECKS[kinds[0]], schema.get("default")
    if default is None and (not is_required or "null" in kinds):
        return f"or({check.replace('isAmount', 'isNumber')}, null)"
    return f"need({check})" if is_required else f"or({check}, {_literal(default)})"


def _literal(value: object) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else f"{value!r}".removesuffix(".0")


def _figures_text() -> str:
    tables = (("device", DEVICE, DeviceStatus), ("user", USER, UserStatus), ("session", SESSION, SessionStatus))
    return _FIGURES + "".join(_table(*table) for table in tables)


def _table(name: str, figures: Iterable[Figure], struct: type[msgspec.Struct]) -> str:
    kind = f"I{struct.__name__}"
    rows = ""
    for figure in figures:
        for place in figure.places & (Place.LINE | Place.BESIDE | Place.DETAILS):
            fields = ", ".join(f"'{field}'" for field in figure.fields if field in struct.__struct_fields__)
            whole = f"'{figure.whole}'" if figure.whole else "null"
            words = figure.words.replace("{}", "%1")
            said = "amount => amount" if words == "%1" else f"(amount, trans) => trans.__('{words}', amount)"
            where, unit = str(place.name).lower(), figure.unit.name.lower()
            rows += (
                f"  {figure.name}: {{ place: '{where}', unit: '{unit}', fields: [{fields}], whole: {whole}, "
                f"words: {said} }},\n"
            )
    return (
        f"\n// prettier-ignore\nexport const {name}Figures = {{\n{rows}}} satisfies Record<string, IFigure<{kind}>>;\n"
    )


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text)
