"""What is left out of other packages' imports, since it takes seconds and nobody here uses it."""

from __future__ import annotations

import sys


def skip_address_grammar() -> None:
    """Let jsonschema do without the package ``rfc3987_syntax``, from now on in this process.

    jsonschema imports it where it is installed (Jupyter's server brings it along) to check strings of the format
    "iri", which no schema of Jupyter's has. The import alone builds the parsers for that: two seconds of a processor,
    more than all else that a gateway or a JupyterLab imports. Like any other checker of formats it may be missing.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
