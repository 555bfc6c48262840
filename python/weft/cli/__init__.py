"""The command line: `weft generate`, `chat`, `models`, `convert`, `inspect`, `serve`, `replay`, `demo`, `bench`.

Commands import heavy packages when they run, so that help, the version and usage errors appear at once.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.chat import chat
from weft.cli.command import HELP_NAMES, Command, Group
from weft.cli.generate import generate
from weft.cli.inspect import inspect
from weft.cli.models import app as models_app
from weft.cli.models import convert
from weft.cli.replay import replay
from weft.cli.serve import serve
from weft.config import is_debug
from weft.errors import WeftError, escaped
from weft_bench.cli import app as bench_app

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
    help="Language-model decoding under a grammar and with speculation, inside one CUDA graph.",
)
app.command(cls=Command, short_help="Answer prompts, under a guide or without.")(generate)
app.command(cls=Command, short_help="Chat with a model in the terminal.")(chat)
app.add_typer(models_app, name="models")
app.command(cls=Command, short_help="Make a model directory from a GGUF file.")(convert)
app.command(cls=Command, short_help="Report versions, the GPU and a model's contents.")(inspect)
app.command(cls=Command, short_help="Serve models over OpenAI's API and Anthropic's.")(serve)
app.command(cls=Command, short_help="Replay the grammar work of a recording.")(replay)


@app.command(cls=Command, short_help="Show guided decoding and drafts on weft-tiny.")
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the trace and its picture.")] = Path("out"),
) -> None:
    """Show guided decoding with EAGLE3 drafts on weft-tiny, in one captured graph."""
    from weft import demo as shown

    shown.run(out)


app.add_typer(bench_app, name="bench")


def show_version(is_given: bool) -> None:
    """Print the version and exit if the option is given."""
    if is_given:
        from weft.version import __version__

        typer.echo(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Show the version.", is_eager=True, callback=show_version),
    ] = False,
) -> None:
    """Language-model decoding under a grammar and with speculation, inside one CUDA graph."""


def main() -> None:
    """Run the command line, and end the process. A `WeftError` or `OSError` prints one line on stderr and exits with
    code 2. A warning prints one line, without its location in the code."""
    if not is_debug():
        warnings.showwarning = _warn
    try:
        app()
    except SystemExit as end:
        _end_process(end.code)
        raise
    except (WeftError, OSError) as error:
        if is_debug():
            raise
        print(f"weft: {type(error).__name__}: {escaped(str(error))}", file=sys.stderr)
        _end_process(2)
        raise SystemExit(2) from None


def _end_process(status: object) -> None:
    """Run the exit handlers, and end the process without the interpreter's teardown.

    The teardown frees torch's objects one by one. That takes tenths of a second of CPU time, and seconds on a busy
    machine.
    Returns, so that the process ends in the normal way, if a profiler or debugger is on, or if the output can't be
    written.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None or not isinstance(status, int | None):
        return
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # nothing reads the pipe, or the program closed the stream
        return
    os._exit(status or 0)


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object, **__: object
) -> None:
    print(f"weft: {escaped(str(message))}", file=sys.stderr)
