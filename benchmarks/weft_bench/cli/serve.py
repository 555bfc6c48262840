"""The command that measures an executor under load."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.config import MAX_DRAFT_TOKENS
from weft_bench.cli.app import DeviceOption, ModelOption, OutOption, app, finish, load


@app.command()
def serve(
    model: ModelOption = None,
    clients: Annotated[
        str,
        typer.Option(help="Closed loops: numbers of clients; each sends its next request after an answer."),
    ] = "1,2,4,8,16,32,64,128",
    rates: Annotated[
        str, typer.Option(help="Open loops: requests a second, at random moments; such as 5,10.")
    ] = "",
    guided: Annotated[str, typer.Option(help="Shares of guided requests, in percent.")] = "0,50,100",
    seconds: Annotated[
        float, typer.Option(help="Duration of each measurement, once the load is steady.")
    ] = 4.0,
    prompts: Annotated[int, typer.Option(min=1, help="Number of held-out prompts, used in turn.")] = 1024,
    prompt_tokens: Annotated[
        str,
        typer.Option(
            help="Lengths of prompts in tokens, at random between two; such as 100-600. Default: their own."
        ),
    ] = "",
    fixed_tokens: Annotated[
        int | None,
        typer.Option(min=2, help="Fixed length of all answers in tokens. Default: they end by themselves."),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            min=0, help="Rounds of the comparison at 32 clients; 0 skips it and the loop's own time."
        ),
    ] = 5,
    speculation: Annotated[
        str,
        typer.Option(help="none, eagle3, mtp, draft_model, ngram, forced, forced+eagle3 or forced+ngram."),
    ] = "none",
    num_draft_tokens: Annotated[
        int,
        typer.Option("--num-draft-tokens", "-k", min=1, max=MAX_DRAFT_TOKENS, help="Drafts per iteration."),
    ] = 3,
    policy: Annotated[
        str, typer.Option(help="guaranteed_no_evict, max_utilization or static_batch.")
    ] = "guaranteed_no_evict",
    overlap: Annotated[
        str, typer.Option(help="on, off, or auto (on where there is a GPU): launch before the host has read.")
    ] = "auto",
    reuse: Annotated[
        bool, typer.Option("--reuse/--no-reuse", help="Whether prompts reuse cached prefixes.")
    ] = False,
    chunked: Annotated[
        bool,
        typer.Option(
            "--chunked/--no-chunked", help="Whether prompts may be split over steps, as in weft serve."
        ),
    ] = False,
    max_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Requests served at once. Default: the largest number of clients."),
    ] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Measure the executor under load. Reports throughput, time to first token and inter-token latency; with a plot."""
    from weft_bench.serve.run import plot
    from weft_bench.serve.setup import Loads, Setup, numbers, span

    setup = Setup(
        model,
        device,
        speculation,
        num_draft_tokens,
        policy,
        overlap,
        reuse=reuse,
        chunked=chunked,
        max_batch=max_batch,
    )
    loads = Loads(
        numbers("clients", clients, int),
        numbers("rates", rates, float),
        numbers("guided", guided, int),
        seconds,
        prompts,
        fixed_tokens,
        rounds,
        span("prompt_tokens", prompt_tokens),
    )
    report = load("serve", out)(setup, loads)
    finish(report, out)
    if out is not None and loads.clients:
        plot(report, out / f"{report.name}.svg")
