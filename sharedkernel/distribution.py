"""The installation of this package and those around it: the one place for error texts and the documentation's tests.

The package index has a stranger's `sharedkernel`, so the distribution is called `jupyter-sharedkernel`; the import
package, the command and the kernel keep their names.
"""

from __future__ import annotations

import sys

#: what `pip list` shows; `pyproject.toml` has the same name
DISTRIBUTION = "jupyter-sharedkernel"
#: whether the package index has it; set it once it has, and the documentation's tests name each line to change
PUBLISHED = False


def pip_install(*extras: str, pip: str = "pip") -> str:
    """Return the command that installs this package.

    Parameters
    ----------
    extras
        What to install with it, such as "host"; none: the user's side alone.
    pip
        The command of the environment that it is for, such as "/opt/torch/bin/python -m pip".
    """
    target = DISTRIBUTION if PUBLISHED else "."
    return f"{pip} install '{target}[{','.join(extras)}]'" if extras else f"{pip} install {target}"


def install_hint(*extras: str, pip: str = "pip") -> str:
    """Return the words for "run …" in an error text; the parameters are those of :func:`pip_install`."""
    return f"`{pip_install(*extras, pip=pip)}`" + ("" if PUBLISHED else " in a checkout of sharedkernel")


def skip_address_grammar() -> None:
    """Let jsonschema do without the package ``rfc3987_syntax``, from now on in this process.

    jsonschema imports it where it is installed (Jupyter's server brings it along) to check strings of the format
    "iri", which no schema of Jupyter's has. The import alone builds the parsers for that: two seconds of a processor,
    more than all else that a gateway or a JupyterLab imports. Like any other checker of formats it may be missing.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
