"""How this package is installed: the one place that error texts and the documentation's tests take it from.

The package index has a stranger's `sharedkernel`, so the distribution is called `jupyter-sharedkernel`; the import
package, the command and the kernel keep their names.
"""

from __future__ import annotations

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
