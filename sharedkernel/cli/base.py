"""The common ground of the commands: strict options, some of which several have, and sentences instead of tracebacks.

Several commands ask a gateway, and some start services of their own. Exit codes: 0 done, 1 could not be done, 2 wrong
use.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from enum import Enum
from textwrap import dedent
from typing import Any, ClassVar, NoReturn

from traitlets import Bool, TraitError, TraitType, Unicode
from traitlets.config import Application
from traitlets.config.loader import ArgumentError, KVArgParseConfigLoader

from sharedkernel._version import __version__
from sharedkernel.client.gateway.connection import fetch
from sharedkernel.client.gateway.credentials import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Credentials,
    find_credentials,
    find_kept,
)
from sharedkernel.errors import ConfigError
from sharedkernel.jupyter.names import KERNEL_NAME
from sharedkernel.units import parse_bytes

#: what traitlets says of a number that is too small
_BELOW_LEAST = re.compile(
    r"The value of the '(\w+)' trait of an? \w+ instance should not be less than (\S+), "
    r"but a value of (\S+) was specified"
)

#: what stands for "no limit" on the line
NO_LIMIT = "none"


def say(sentence: str) -> None:
    """Print a sentence on standard error, behind the name of the program."""
    print(f"sharedkernel: {sentence}", file=sys.stderr)  # noqa: T201


def fail(sentence: str, *, status: int = 1) -> NoReturn:
    """End this process with a sentence on standard error.

    Parameters
    ----------
    sentence
        What happened and what to do; the name of the program is put before it.
    status
        Exit code: 1 for what could not be done, 2 for wrong use.

    Raises
    ------
    SystemExit
        Always.
    """
    say(sentence)
    sys.exit(status)


class _StrictLoader(KVArgParseConfigLoader):
    """Refuses an option that does not exist, where traitlets would warn or print argparse's usage."""

    def _create_parser(self) -> None:
        super()._create_parser()
        self.parser.error = self._refuse  # type: ignore[method-assign]

    def _refuse(self, message: str) -> NoReturn:
        # Where one that does not exist has no value, argparse asks for one.
        unknown = re.fullmatch(r"argument --([\w-]+): expected one argument", message)
        if unknown and unknown[1] not in {*self.aliases, *self.flags}:
            message = f"there is no option --{unknown[1]}"
        raise ArgumentError(message)

    def _handle_unrecognized_alias(self, arg: str) -> None:
        self._refuse(f"there is no option {'-' if len(arg) == 1 else '--'}{arg}")


class CommandApp(Application):
    """Base of the commands.

    Subclasses set ``name``, ``description`` and ``examples``, and implement ``start``. Each of their traits with a
    ``help`` is an option, one without a value if it is a Bool: ``--some-name`` for ``some_name``, or what the trait's
    tag ``option`` says (None: no option). ``aliases`` and ``flags`` have more.
    """

    version = __version__
    flags: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]  # traitlets leaves it unsaid that they are the class's
    aliases: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]
    subcommands: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]
    #: whether options can be set in a file, so that their names there are worth telling
    has_config_file: ClassVar[bool] = False
    #: whether words that are no options are welcome (they land in ``extra_args``)
    accepts_arguments: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make options of the class's own traits, behind those of its base."""
        super().__init_subclass__(**kwargs)
        cls.aliases, cls.flags = dict(cls.aliases), dict(cls.flags)
        for name, trait in vars(cls).items():
            if not isinstance(trait, TraitType) or not trait.help:
                continue
            trait.tag(config=True)
            option = trait.metadata.get("option", name.replace("_", "-"))
            if isinstance(trait, Bool):
                cls.flags[option] = ({cls.__name__: {name: True}}, trait.help)
            elif option is not None:
                cls.aliases[option] = f"{cls.__name__}.{name}"

    def parse_command_line(self, argv: Sequence[str] | None = None) -> None:
        """Parse *argv*; wrong use ends the process with one sentence and exit code 2, an unusable directory with 1."""
        # Application's own wrapper around its method would log the error and exit with 1
        parse = inspect.unwrap(Application.parse_command_line)
        try:
            parse(self, argv)
        except (TraitError, ArgumentError) as error:
            said = _BELOW_LEAST.sub(r"\1 must be at least \2, not \3", str(error))
            fail(f"{said.rstrip('.')}; {self.remedy(argv or ())}.", status=2)
        except BrokenPipeError:  # who read the help has read enough, as with `| head`; see `main`
            raise
        except OSError as error:  # Jupyter makes a directory as soon as an option names it
            why = f"{error.filename} cannot be used ({error.strerror})" if error.filename else str(error)
            fail(f"{why}; name another, or have its owner make it.")
        if self.extra_args and not self.accepts_arguments:
            fail(f"{self.extra_args[0]!r} is not understood; see `{self._command_line} --help`.", status=2)

    def remedy(self, argv: Sequence[str]) -> str:
        """Return what to do about a line, *argv*, that is not understood; the end of a sentence."""
        return f"see `{self._command_line} --help`"

    @property
    def _command_line(self) -> str:
        return "sharedkernel" if self.name == "sharedkernel" else f"sharedkernel {self.name}"

    def _create_loader(self, argv: Any, aliases: Any, flags: Any, classes: Any) -> KVArgParseConfigLoader:
        return _StrictLoader(argv, aliases, flags, classes=classes, log=self.log, subcommands=self.subcommands)

    def emit_options_help(self) -> Generator[str, None, None]:
        """Yield the options, without traitlets' explanation of configurables (there is no configuration file)."""
        if self.flags or self.aliases:
            yield "Options"
            yield "======="
            lines = [*self.emit_flag_help(), *self.emit_alias_help(), ""]
            yield from (line for line in lines if self.has_config_file or not line.startswith("    Equivalent to:"))

    def emit_alias_help(self) -> Generator[str, None, None]:
        """Yield the options that take a value, each with its default unless that is nothing, or told of in its help."""
        names = iter(self.aliases.values())
        told = False
        for line in super().emit_alias_help():
            if line.startswith("-"):
                target = next(names)
                trait = (target[0] if isinstance(target, tuple) else target).rpartition(".")[2]
                told = False
            if line.startswith("    Default: "):
                # As this command has it, whatever the class that the option came from says.
                default = self.trait_defaults(trait)
                default = default.value if isinstance(default, Enum) else default
                if told or default in ("", None, {}, []):
                    continue
                line = f"    Default: {default!r}"
            told = told or "Default: " in line
            yield line

    def emit_examples(self) -> Generator[str, None, None]:
        """Yield the examples."""
        yield "Examples"
        yield "========"
        yield from (f"    {line}" for line in dedent(self.examples).strip().splitlines())

    def emit_help_epilogue(self, classes: bool) -> Generator[str, None, None]:
        """Yield nothing more."""
        yield from ()


class GatewayCommandApp(CommandApp):
    """Base of the commands that ask a gateway."""

    #: seconds that an answer may take
    patience: ClassVar[float] = 5.0
    gateway_url = Unicode(
        help=f"The gateway's address. Default: ${URL_VARIABLE}, else what `sharedkernel install` kept."
    )
    token = Unicode(help=f"Your token. Default: ${TOKEN_VARIABLE}, else what `sharedkernel install` kept.")

    def credentials(self) -> Credentials:
        """Return the gateway and token from the options, the environment, or `sharedkernel install`, in that order.

        Raises
        ------
        ConfigError
            When there are none, or what is there cannot be used.
        """
        given = {URL_VARIABLE: self.gateway_url, TOKEN_VARIABLE: self.token}
        environment = os.environ | {name: value for name, value in given.items() if value}
        try:
            return find_credentials(KERNEL_NAME, environment)
        except ConfigError as error:
            if find_kept(KERNEL_NAME).exists() or all(environment.get(name) for name in given):
                raise
            # For the user of `sharedkernel lab` there is nothing to install.
            raise ConfigError(
                f"{error} Beside `sharedkernel lab` it works in a terminal of that JupyterLab (File, New, Terminal)."
            ) from None

    def ask(self, path: str, method: str = "GET", body: Any = None) -> dict[str, Any]:
        """Return the JSON object that the gateway answers to one request; as :meth:`.Gateway.fetch`."""
        text = None if body is None else json.dumps(body)
        return fetch(self.credentials(), path, method=method, body=text, timeout=self.patience)

    def refuse_empty(self, *names: str, what: str = "has no value") -> None:
        """End this process if one of these options, or an argument, is empty.

        An empty variable in a script must not mean something else than it was to mean.
        """
        if not all(map(str.strip, self.extra_args)):
            fail(f"an argument is empty; see `{self._command_line} --help`.", status=2)
        for name in names:
            if name in self.config[type(self).__name__] and not getattr(self, name).strip():
                fail(f"--{name.replace('_', '-')} {what}; see `{self._command_line} --help`.", status=2)

    @staticmethod
    def show_notes(answer: Mapping[str, Any]) -> None:
        """Print what the gateway notes about a change that it has made, where something else may have been meant."""
        for note in answer.get("notes", ()):
            say(f"note: {note}")


class ReportCommandApp(GatewayCommandApp):
    """Base of the commands that print what the gateway answers."""

    as_json = Bool(False, help="Print JSON instead of text.").tag(option="json")

    def print_json(self, answer: Any) -> bool:
        """Print *answer* as JSON if that was asked for; return whether it was."""
        if self.as_json:
            print(json.dumps(answer))  # noqa: T201
        return self.as_json


class LimitCommandApp(ReportCommandApp):
    """Base of the commands that set what users may use."""

    memory = Unicode(help='Memory on each device, such as "8GiB", or "25%" of it.')
    share = Unicode(help="Share of the device; 2 is twice the usual one.")
    sessions = Unicode(help="How many sessions at a time.")
    priority = Unicode(help="Larger is served first, under the policy `priority`.")
    offload_after = Unicode(
        help='How long idle memory stays on the device while others wait, such as "30s"; "never": always.'
    )
    cull_after = Unicode(help='After how long an idle session is ended, such as "2h".')
    linger = Unicode(help='How long a session that was shut down can be brought back, such as "10m".')

    def limits(self) -> dict[str, Any]:
        """Return the limits on the line as the gateway takes them.

        Raises
        ------
        SystemExit
            With 2 when one has no value.
        """
        names = LimitCommandApp.class_own_traits()
        self.refuse_empty(*names, "group")
        values = {name: getattr(self, name).strip() for name in names}
        return {name: None if value == NO_LIMIT else _number(value) for name, value in values.items() if value}


def _number(value: str) -> float | int | str:
    """Return *value* as a number if it is one; what else it may be is the gateway's to say."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


class StackCommandApp(CommandApp):
    """Base of the commands that stand on a :class:`~sharedkernel.local_stack.LocalStack`."""

    device = Unicode("host", help="The device to share: `host`, the processor.")
    capacity = Unicode(
        "4GiB", help='How much of the device\'s memory to share, such as "8GiB"; empty: what the device has.'
    )

    def stack_options(self) -> dict[str, Any]:
        """Return the options as :class:`~sharedkernel.local_stack.LocalStack` takes them.

        Raises
        ------
        SystemExit
            With 2 when the capacity is no amount of memory.
        """
        try:
            parse_bytes(self.capacity or 0)
        except ConfigError as error:
            fail(f"--capacity: {error}", status=2)
        return {"devices": [self.device], "capacity": self.capacity or None}
