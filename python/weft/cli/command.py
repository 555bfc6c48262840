"""Formats the help and the errors of `weft`: plain text of 80 columns, without rich, which is slow to import."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

HELP_NAMES: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
CHOICES = re.compile(r"'(?P<given>[^']*)' is not one of (?P<known>.*?)\.?$")

OTHER_NAMES = {
    "run": "weft chat NAME",
    "cli": "weft chat NAME",
    "complete": "weft generate PROMPT",
    "pull": "weft models get NAME",
    "download": "weft models get NAME",
    "list": "weft models",
    "ls": "weft models",
    "show": "weft inspect -m NAME",
    "start": "weft serve NAME",
    "server": "weft serve NAME",
    "collect-env": "weft inspect",
}
"""Commands of Ollama, llama.cpp and vLLM, with those of weft."""


class Group(TyperGroup):
    """A group whose error for another program's command names weft's."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that `args` begin with."""
        if args[0] in OTHER_NAMES and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. It is: {OTHER_NAMES[args[0]]}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command whose help lists options under headings (`rich_help_panel`). Its error for a wrong value suggests a
    close match."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                if is_argument:
                    record = (record[0].partition(" <")[0], record[1])  # drop the type
                heading = getattr(parameter, "rich_help_panel", None) or ("Options", "Arguments")[is_argument]
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. The error for a wrong value suggests a close match."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = guessed(error.message)
            raise


def guessed(message: str) -> str:
    """Shorten the message about an invalid choice, and suggest the closest valid one. Other messages are returned
    unchanged."""
    message = message.removeprefix("Value error, ")
    found = CHOICES.search(message)
    if found is None:
        return message
    known = re.findall(r"'([^']*)'", found["known"])
    close = get_close_matches(found["given"], known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{found['given']!r} is not one of {', '.join(known)}.{hint}"
