"""Writes ``reference/configuration.md`` and ``reference/commands.md`` from the traits of the applications themselves.

So the reference cannot say anything that the commands do not do. What Jupyter's own server classes can be told is left
to Jupyter's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from traitlets.utils.importstring import import_item
from traitlets.utils.text import wrap_paragraphs

from sharedkernel.cli.main import COMMANDS

#: what an administrator configures, and where it takes effect
_CONFIGURED = {
    "sharedkernel.gateway.app.SharedKernelGateway": "The gateway: who may use what.",
    "sharedkernel.gateway.kernels.manager.SessionKernels": "The gateway's sessions.",
    "sharedkernel.gateway.channels.websocket.SessionWebsocket": "The gateway's websockets.",
    "sharedkernel.executor.app.ExecutorApp": "The executor: the device and how it is scheduled.",
}


def _configuration() -> Iterator[str]:
    yield "# Configuration"
    yield (
        "All of it goes into `jupyter_sharedkernel_config.py` as `c.CLASS.NAME = VALUE`; what commands have options "
        "for can be given there as well."
    )
    for path, what in _CONFIGURED.items():
        kind = import_item(path)
        yield f"## `{kind.__name__}`"
        yield what
        for name, trait in sorted(_own_traits(kind).items()):
            told = "Default: " in trait.help
            yield f"`{name}`\n: {_sentence(trait.help)}" + ("" if told else f" Default: `{_default(trait)}`.")


def _own_traits(kind: Any) -> dict[str, Any]:
    """Return the traits of *kind* that its own package defines."""
    package = kind.__module__.rpartition(".")[0]
    return {
        name: trait
        for name, trait in kind.class_traits(config=True).items()
        if trait.this_class.__module__.startswith(f"{package}.")
    }


def _commands() -> Iterator[str]:
    yield "# Commands"
    for name, command in COMMANDS.items():
        kind = import_item(command.application)
        yield f"## `sharedkernel {name}`"
        yield "\n\n".join(wrap_paragraphs(_plain(kind.description), 110))
        if _plain(kind.examples):
            yield "```sh\n" + "\n".join(line.strip() for line in _plain(kind.examples).splitlines()) + "\n```"
        for alias, target in sorted(kind.aliases.items()):
            owner, _, trait = (target[0] if isinstance(target, tuple) else target).partition(".")
            described = _trait(kind, owner, trait)
            if len(alias) > 1 and described is not None:
                yield f"`--{alias}`\n: {_sentence(described.help)}"
        for flag, (_, what) in sorted(kind.flags.items()):
            if len(flag) > 1:
                yield f"`--{flag}`\n: {_sentence(what)}"


def _trait(kind: Any, owner: str, name: str) -> Any:
    for candidate in (*kind.mro(), *kind.classes):
        if candidate.__name__ == owner:
            return candidate.class_traits().get(name)
    return None


def _plain(text: Any) -> str:
    return "" if not isinstance(text, str) else "\n".join(line.strip() for line in text.strip().splitlines())


def _sentence(text: str) -> str:
    sentence = " ".join(text.split())
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _default(trait: Any) -> str:
    default = trait.default_value
    value = repr(str(default)) if isinstance(default, StrEnum) else trait.default_value_repr()
    return "set when it starts" if "<" in value else value


def _write(app: Sphinx) -> None:
    for name, parts in (("configuration", _configuration()), ("commands", _commands())):
        path = Path(app.srcdir) / "reference" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        text = "\n\n".join(parts) + "\n"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Generate the reference before anything is read."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
