"""Commands that measure the cost of guides and the validity of answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft_bench.cli.app import OpenObjectsOption, OutOption, StrictOption, app, finish, load


@app.command()
def grammar(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of JSON schemas with instances in MaskBench's layout (*.json), or a *.jsonl file of them. "
            "The options below are for it. Default: what calls of a matcher cost, native beside Python."
        ),
    ] = None,
    backends: Annotated[str, typer.Option(help="Such as xgrammar. Default: all, one after another.")] = "",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A folder with a tokenizer.json. Default: made-up tokens, the longest that fit."),
    ] = None,
    vocab: Annotated[int, typer.Option(min=300, help="Made-up tokens.")] = 131072,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of schemas, chosen at random.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of that choice.")] = 0,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, help="Time limit of a compile in seconds; instances get 4 times that."),
    ] = 30.0,
    style: Annotated[str, typer.Option(help="How instances are written: spaced or compact.")] = "spaced",
    any_order: Annotated[bool, typer.Option("--any-order", help="Accept properties in any order.")] = False,
    strict: StrictOption = True,
    open_objects: OpenObjectsOption = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of processes; they disturb each other's times.")
    ] = 1,
    names: Annotated[
        bool, typer.Option(help="Write each file's problem, not only the counts by kind.")
    ] = True,
    out: OutOption = None,
) -> None:
    """Compare grammar backends on JSON schemas. Reports coverage, compile and mask times, and correct verdicts."""
    if source is None:
        return finish(load("grammar", out)(), out)
    from weft_bench.grammar.schemas import vocabulary_of

    report = load("schemas", out)(
        source,
        vocabulary_of(tokenizer, vocab),
        tokenizer=tokenizer,
        backends=backends.split(",") if backends else (),
        limit=limit,
        timeout_s=timeout,
        seed=seed,
        style=style,
        any_order=any_order,
        strict=strict,
        open_objects=open_objects,
        jobs=jobs,
        names=names,
    )
    finish(report, out)


@app.command()
def validity(
    source: Annotated[
        Path,
        typer.Argument(help="JSON schemas, as `weft bench grammar` takes them; instances are not needed."),
    ],
    limit: Annotated[
        int, typer.Option(min=1, help="Number of schemas that compile, chosen at random.")
    ] = 120,
    each: Annotated[int, typer.Option(min=1, help="Number of answers to each schema by each drafter.")] = 2,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum length of an answer; cut answers do not count.")
    ] = 192,
    seed: Annotated[int, typer.Option(help="Seed of the schemas and the answers.")] = 0,
    strict: StrictOption = True,
    open_objects: OpenObjectsOption = False,
    names: Annotated[bool, typer.Option(help="Write which schemas had invalid answers.")] = True,
    out: OutOption = None,
) -> None:
    """Check weft-tiny's answers to JSON schemas with jsonschema. The temperature is 1, and every drafter is used."""
    report = load("validity", out)(
        source,
        limit=limit,
        each=each,
        max_tokens=max_tokens,
        seed=seed,
        strict=strict,
        open_objects=open_objects,
        names=names,
    )
    finish(report, out)


@app.command()
def strict(
    seed: Annotated[int, typer.Option(help="Seed of the first schema; later ones count up.")] = 0,
    answers: Annotated[int, typer.Option(min=1, help="Minimum number of finished answers.")] = 10_000,
    schemas: Annotated[int, typer.Option(min=1, help="Minimum number of schemas that compile.")] = 1,
    model: Annotated[
        bool, typer.Option(help="Also sample from weft-tiny, besides random walks through masks.")
    ] = True,
    out: OutOption = None,
) -> None:
    """Check answers to random JSON schemas: none may be invalid. The packages json and jsonschema check them."""
    finish(load("strict", out)(seed=seed, answers=answers, schemas=schemas, model=model), out)
