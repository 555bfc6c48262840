"""Commands that measure iterations: acceptance, overhead, step, speed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Annotated

import typer

from weft.config import MAX_DRAFT_TOKENS, model_directory
from weft.errors import InputError
from weft_bench.cli.app import DeviceOption, ModelOption, OutOption, PromptsOption, app, finish, load


@app.command()
def acceptance(
    model: ModelOption = None,
    prompts: PromptsOption = 64,
    max_k: Annotated[
        int, typer.Option(min=1, max=MAX_DRAFT_TOKENS, help="Drafts per iteration: 1 to this.")
    ] = MAX_DRAFT_TOKENS,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    simulate_acceptance: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=MAX_DRAFT_TOKENS + 1,
            help="Force this number of tokens per iteration, whatever the model predicts: for timing models with "
            "random weights. Every figure says that it is simulated.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Measure the tokens per iteration of every drafter. Drafts are guided and unguided, for each number of drafts;
    with a plot."""
    from weft_bench.engine.acceptance import plot

    report = load("acceptance", out)(device, model, prompts, max_k, temperature, simulate_acceptance)
    finish(report, out)
    if out is not None:
        plot(report, out / f"{report.name}.svg")


@app.command()
def overhead(
    model: ModelOption = None,
    shape: Annotated[
        str, typer.Option(help="A random model in the model's place, by name: small or llama-8b-eagle3.")
    ] = "",
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of a random Llama in the model's place.")
    ] = None,
    hidden: Annotated[int | None, typer.Option(min=64, help="Its hidden size. Default: 768.")] = None,
    vocab: Annotated[int | None, typer.Option(min=1024, help="Its vocabulary. Default: 32768.")] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Batch sizes: powers of two up to this.")] = 64,
    iterations: Annotated[int, typer.Option(min=8, help="Timed iterations of each kind.")] = 96,
    random: Annotated[
        bool,
        typer.Option(help="Beside a model of a directory, measure a random one of 110 million parameters."),
    ] = True,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Compare guided and unguided iterations, by batch size. --out also writes a trace of the worst."""
    from weft_bench.engine.models import Shape, shape_of

    sizes = {"--layers": layers, "--hidden": hidden, "--vocab": vocab}
    refuse_together({"--shape": shape or None}, {"--model": model, **sizes})
    refuse_together({"--model": model}, sizes)
    if layers is None and (hidden, vocab) != (None, None):
        raise InputError("--hidden and --vocab are sizes of a random model; give its --layers, too")
    chosen = shape_of(shape) if shape else None
    if layers is not None:
        chosen = Shape(layers, hidden or 768, vocab or 32768)
    finish(load("overhead", out)(device, model, chosen, batches_to(max_batch), iterations, out, random), out)


@app.command()
def step(
    model: Annotated[
        str, typer.Option(help="A model's name or directory, with an EAGLE3 head. Default: a random model.")
    ] = "",
    shape: Annotated[
        str, typer.Option(help="Of the random model and its EAGLE3 head: small or llama-8b-eagle3.")
    ] = "small",
    max_batch: Annotated[int, typer.Option(min=1, help="Batch sizes: powers of two up to this.")] = 64,
    iterations: Annotated[int, typer.Option(min=8, help="Timed iterations of each kind.")] = 64,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a prompt. Default: 64 on the CPU, 512 on a GPU.")
    ] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Compare an iteration with the time to read its bytes, and with the time in which its work runs. Iterations are
    guided, in split graphs, and eager."""
    report = load("step", out)(
        device,
        shape,
        batches_to(max_batch),
        iterations=iterations,
        context=context,
        model=model_directory(model) if model else None,
    )
    finish(report, out)


@app.command()
def speed(
    model: ModelOption = None,
    prompts: PromptsOption = 48,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds over all prompts.")] = 3,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Measure the tokens/s of every drafter, guided, at batch 1. Each has its best number of drafts, in one graph and
    in split graphs."""
    finish(load("speed", out)(device, model, prompts, rounds), out)


def refuse_together(these: Mapping[str, object], those: Mapping[str, object]) -> None:
    """Raise `InputError` if an option of each mapping is set, because one of the two would silently have no effect."""
    for one, other in product(these, those):
        if these[one] is not None and those[other] is not None:
            raise InputError(f"{one} and {other} both say which model; give one of them")


def batches_to(most: int) -> list[int]:
    """Return the powers of two up to `most`."""
    return [1 << i for i in range(most.bit_length())]
