"""``sharedkernel token``: adding, listing and removing users' tokens."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from traitlets import Bool, Unicode

from sharedkernel.cli.base import CommandApp, fail
from sharedkernel.errors import ConfigError
from sharedkernel.gateway.auth.tokens import TokenFile, default_tokens_file, read_token_use, token_id
from sharedkernel.units import parse_expiry

#: characters of an ISO 8601 time until its minutes
_MINUTES = len("2026-12-31T18:00")


class TokenApp(CommandApp):
    """Adds, lists and removes users' tokens."""

    name = "token"
    description = 'Manage the tokens by which a gateway with `identity = "tokens"` knows its users.'
    examples = """
        sharedkernel token add ada        # prints a new token for ada, once
        sharedkernel token add ada grace hedy --expires 18:00
        sharedkernel token list
        sharedkernel token remove ada     # none of ada's tokens lets anybody in any more
        sharedkernel token remove sk-1a2b3c4d   # only the one that begins so, see the list
    """
    accepts_arguments = True

    tokens_file = Unicode(help="The file of tokens; as `c.SharedKernelGateway.tokens_file`.")
    expires = Unicode(
        help="When new tokens end: a time such as 18:00, a date such as 2026-12-31, both, or a duration such as 90d. "
        "Default: never."
    )
    json = Bool(False, help="Print JSON instead of text.")

    def start(self) -> None:
        """Run the subcommand.

        Raises
        ------
        SystemExit
            With 2 for wrong use, 1 if the file cannot be used or there was nothing to remove.
        """
        file = TokenFile(Path(self.tokens_file) if self.tokens_file else default_tokens_file())
        try:
            match self.extra_args:
                case ["add", user, *others]:
                    self._add(file, [user, *others])
                case ["list"]:
                    self._list(file)
                case ["remove", what]:
                    user = {token_id(name): token.user for name, token in file.tokens().items()}.get(what, what)
                    if not (count := file.remove(what)):
                        fail(f"there is no token of {what!r} in {file.path}; see `sharedkernel token list`.")
                    self._print({"user": user, "removed": count}, f"removed {count} token(s) of {user}")
                case _:
                    fail("use `token add NAME...`, `token list`, `token remove NAME` or `token remove ID`.", status=2)
        except ConfigError as error:
            fail(str(error))

    def _add(self, file: TokenFile, users: list[str]) -> None:
        if len(set(users)) < len(users):
            fail("a name is there twice; name each user once.", status=2)
        now = datetime.datetime.now().astimezone()
        expires = parse_expiry(self.expires, now) if self.expires else None
        made = dict(zip(users, file.add_all(users, expires=expires), strict=True))
        until = {} if expires is None else {"expires": expires.astimezone(datetime.UTC).isoformat(timespec="seconds")}
        documents = [{"user": user, "token": token} | until for user, token in made.items()]
        if len(made) == 1:
            self._print(documents[0], made[users[0]])
        else:
            self._print(documents, "\n".join(f"{user} {token}" for user, token in made.items()))

    def _list(self, file: TokenFile) -> None:
        used = read_token_use(file.path)
        documents: list[dict[str, Any]] = [
            {
                "user": token.user,
                "created": token.created,
                "expires": token.expires and token.expires.isoformat(),
                "last_used": used.get(name),
                "id": token_id(name),
            }
            for name, token in sorted(file.tokens().items(), key=lambda item: (item[1].user, item[1].created, item[0]))
        ]
        if self.json or not documents:
            self._print(documents, f"There are no tokens in {file.path}; make one with `sharedkernel token add`.")
            return
        table = Table("user", "created (UTC)", "expires (UTC)", "last used (UTC)", "begins with")
        for document in documents:
            user, *times, begins_with = (value or "" for value in document.values())
            table.add_row(user, *(time[:_MINUTES].replace("T", " ") for time in times), begins_with)
        Console().print(table)

    def _print(self, document: Any, text: str) -> None:
        print(json.dumps(document) if self.json else text)  # noqa: T201
