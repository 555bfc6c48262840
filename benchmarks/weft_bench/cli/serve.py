"""An executor under load."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.config import MAX_DRAFT_TOKENS
from weft_bench.cli.app import DeviceOption, ModelOption, OutOption, app, finish, load


@app.command()
def serve(
    model: ModelOption = None,
    clients: Annotated[
        str, typer.Option(help="Closed loops: numbers of clients, each of whom asks again when answered.")
    ] = "1,2,4,8,16,32,64,128",
    rates: Annotated[
        str, typer.Option(help="Open loops: requests a second, at random moments; such as 5,10.")
    ] = "",
    guided: Annotated[str, typer.Option(help="Shares of guided requests, in percent.")] = "0,50,100",
    seconds: Annotated[float, typer.Option(help="Of each measurement, once the load is steady.")] = 4.0,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts; then they begin again.")] = 1024,
    fixed_tokens: Annotated[
        int | None,
        typer.Option(min=2, help="All answers have so many tokens. Default: they end by themselves."),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            min=0, help="Rounds of what is compared at 32 clients; 0 leaves that and the loop's own time out."
        ),
    ] = 5,
    speculation: Annotated[
        str, typer.Option(help="none, eagle3, mtp, draft_model, ngram, forced or forced+eagle3.")
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
        bool, typer.Option("--reuse/--no-reuse", help="Whether prompts that came before are found.")
    ] = False,
    max_batch: Annotated[
        int | None, typer.Option(min=1, help="Requests served at once. Default: the most clients.")
    ] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """The executor under load: throughput, time to first token, time between tokens; with a plot of what they trade."""
    from weft_bench.serve.run import plot
    from weft_bench.serve.setup import Loads, Setup, numbers

    setup = Setup(
        model, device, speculation, num_draft_tokens, policy, overlap, reuse=reuse, max_batch=max_batch
    )
    loads = Loads(
        numbers("clients", clients, int),
        numbers("rates", rates, float),
        numbers("guided", guided, int),
        seconds,
        prompts,
        fixed_tokens,
        rounds,
    )
    report = load("serve", out)(setup, loads)
    finish(report, out)
    if out is not None and loads.clients:
        plot(report, out / f"{report.name}.svg")
