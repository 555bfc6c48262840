"""`weft bench`: each command measures one claim, prints a table, and writes JSON where asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weft.bench.children import run_benchmark
from weft.bench.report import Report
from weft.bench.rows import keeping
from weft.config import MAX_DRAFT_TOKENS
from weft.errors import InputError
from weft.runtime import get as get_runtime

app = typer.Typer(no_args_is_help=True, help="Measure weft; each command prints a table and can write JSON.")

MODULES = {
    "replay": "runtime.replay",
    "hostfunc": "runtime.hostfunc",
    "mask": "runtime.mask",
    "grammar": "grammar.calls",
    "schemas": "grammar.schemas",
    "validity": "grammar.validity",
    "matchers": "grammar.matchers",
    "workers": "grammar.workers",
    "programs": "grammar.wasm",
    "acceptance": "engine.acceptance",
    "rejection": "engine.rejection",
    "overhead": "engine.overhead",
    "step": "engine.step",
    "speed": "engine.speed",
    "serve": "serve.run",
}
BENCHES = tuple(name for name in MODULES if name not in ("schemas", "validity"))  # the others need files

ROW_SECONDS = 1800.0
"""A row that takes longer has stalled: the process ends with its stacks on stderr."""
HOST_ONLY = ("grammar", "matchers", "workers", "programs")  # no device has a part in these

DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Write NAME.json, with machine, versions and commit, to this folder.")
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict/--no-strict", help="A schema is enforced whole or refused; or as far as can be."),
]
OpenObjectsOption = Annotated[
    bool, typer.Option("--open-objects", help="Objects that name properties may have others.")
]
ModelOption = Annotated[
    Path | None, typer.Option(help="A model directory with its drafters. Default: weft-tiny.")
]
PromptsOption = Annotated[int, typer.Option(min=1, help="Held-out prompts of each set.")]


def load(name: str, out: Path | None) -> Callable[..., Report]:
    """The `run` of a benchmark's module, which writes its report to `out`, if that is given, after every row."""
    run: Callable[..., Report] = import_module(f"weft.bench.{MODULES[name]}").run

    def kept(*args: Any, **options: Any) -> Report:
        with keeping(out, ROW_SECONDS):
            return run(*args, **options)

    return kept


def finish(report: Report, out: Path | None) -> None:
    """Print a report; write it to `out`, too, where that is given. Exits with 1 where something failed."""
    console = Console()
    report.show(console)
    if out is not None:
        console.print(f"wrote {report.write(out)}")
    if report.failures:
        raise typer.Exit(1)


def refuse_together(these: Mapping[str, object], those: Mapping[str, object]) -> None:
    """Options of which one would silently drop the other: `InputError` names both."""
    for one, other in product(these, those):
        if these[one] is not None and those[other] is not None:
            raise InputError(f"{one} and {other} both say which model; give one of them")


def batches_to(most: int) -> list[int]:
    """Powers of two."""
    return [1 << i for i in range(most.bit_length())]


@app.command()
def replay(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Microseconds per replayed node: native, Python, device, copy, and across threads."""
    finish(load("replay", out)(device), out)


@app.command()
def hostfunc(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """What launching a host function costs; beside cuda.core's where there is CUDA."""
    finish(load("hostfunc", out)(device), out)


@app.command()
def mask(device: DeviceOption = "auto", out: OutOption = None) -> None:
    """Applying token masks: weft's kernel beside torch and xgrammar's."""
    finish(load("mask", out)(device), out)


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
    limit: Annotated[
        int | None, typer.Option(min=1, help="So many of the schemas, chosen by chance.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of that choice.")] = 0,
    timeout: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds that a schema may compile; its instances may take 4 times that."),
    ] = 30.0,
    style: Annotated[str, typer.Option(help="How instances are written: spaced or compact.")] = "spaced",
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Properties in any order, not in the schema's.")
    ] = False,
    strict: StrictOption = True,
    open_objects: OpenObjectsOption = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once; they disturb each other's times.")] = 1,
    names: Annotated[
        bool, typer.Option(help="Write each file's problem, not only how often which kind came.")
    ] = True,
    out: OutOption = None,
) -> None:
    """Grammar backends on JSON schemas: what compiles, compile and mask times, whose verdicts are right."""
    if source is None:
        return finish(load("grammar", out)(), out)
    from weft.bench.grammar.schemas import vocabulary_of

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
    limit: Annotated[int, typer.Option(min=1, help="So many of the schemas that compile, by chance.")] = 120,
    each: Annotated[int, typer.Option(min=1, help="Answers to each schema by each drafter.")] = 2,
    max_tokens: Annotated[int, typer.Option(min=1, help="Answers that are cut say nothing.")] = 192,
    seed: Annotated[int, typer.Option(help="Of the schemas and of the answers.")] = 0,
    strict: StrictOption = True,
    open_objects: OpenObjectsOption = False,
    names: Annotated[bool, typer.Option(help="Write which schemas had invalid answers.")] = True,
    out: OutOption = None,
) -> None:
    """Answers of weft-tiny to JSON schemas at temperature 1, with every drafter, judged by `jsonschema`."""
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
def matchers(
    source: Annotated[
        Path | None,
        typer.Argument(help="Schemas with instances, as `weft bench grammar` takes them. Default: made up."),
    ] = None,
    vocab: Annotated[int, typer.Option(min=300, help="Made-up tokens.")] = 131072,
    texts: Annotated[int, typer.Option(min=1, help="How many guides, with a text of each.")] = 24,
    repeat: Annotated[int, typer.Option(min=1, help="Turns of each way of calling.")] = 15,
    out: OutOption = None,
) -> None:
    """Native matchers beside each grammar library's own best way of being called, one by one and in batches."""
    finish(load("matchers", out)(source, vocab, texts=texts, repeat=repeat), out)


@app.command()
def workers(out: OutOption = None) -> None:
    """The masks of a batch shared among threads: with how many, of which masks, it pays."""
    finish(load("workers", out)(), out)


@app.command()
def programs(
    program: Annotated[
        Path | None,
        typer.Argument(
            help="A program; it takes random tokens that its masks allow. Default: the example, which writes digits."
        ),
    ] = None,
    arg: Annotated[str | None, typer.Option(help="Its argument. Default: the number of steps.")] = None,
    vocabs: Annotated[
        str, typer.Option(help="Numbers of tokens, made up; 0: weft-tiny's own.")
    ] = "0,32768,131072",
    steps: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = 64,
    repeat: Annotated[int, typer.Option(min=1, help="Answers.")] = 12,
    out: OutOption = None,
) -> None:
    """Steps of WASM programs as guides, beside the same grammar as a native guide."""
    sizes = [int(size) for size in vocabs.split(",")]
    finish(load("programs", out)(sizes, steps, repeat, program, arg), out)


@app.command()
def acceptance(
    model: ModelOption = None,
    prompts: PromptsOption = 64,
    max_k: Annotated[
        int, typer.Option(min=1, max=MAX_DRAFT_TOKENS, help="Drafts per iteration: 1 to this.")
    ] = MAX_DRAFT_TOKENS,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 is greedy; at 1, `weft bench rejection` runs behind.")
    ] = 0.0,
    simulate_acceptance: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=MAX_DRAFT_TOKENS + 1,
            help="Force so many tokens per iteration, whatever the model says: for timing models with random "
            "weights. Every figure says that it is simulated.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Tokens per iteration of every drafter, drafts guided and not, by the number of drafts; with a plot."""
    from weft.bench.engine.acceptance import plot

    report = load("acceptance", out)(device, model, prompts, max_k, temperature, simulate_acceptance)
    finish(report, out)
    if out is not None:
        plot(report, out / f"{report.name}.svg")
    if temperature == 1 and simulate_acceptance is None:
        finish(load("rejection", out)(device, model, prompts), out)


@app.command()
def rejection(
    model: ModelOption = None,
    prompts: PromptsOption = 64,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Coupled sampling beside rejection sampling at temperature 1: what each accepts of the same drafts."""
    finish(load("rejection", out)(device, model, prompts), out)


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
    """Time per iteration, guided beside unguided, by batch size; --out writes a trace of the worst, too."""
    from weft.bench.engine.models import Shape, shape_of

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
    """Time per iteration beside the bytes it reads over the memory's bandwidth; guided, in split graphs, eager."""
    finish(
        load("step", out)(device, shape, batches_to(max_batch), iterations=iterations, context=context), out
    )


@app.command()
def speed(
    model: ModelOption = None,
    prompts: PromptsOption = 48,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds over all prompts.")] = 3,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Tokens per second at batch 1, guided: every drafter at its best number of drafts; one graph and split."""
    finish(load("speed", out)(device, model, prompts, rounds), out)


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
    from weft.bench.serve.run import plot
    from weft.bench.serve.setup import Loads, Setup, numbers

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


@app.command("all")
def everything(
    device: DeviceOption = "auto",
    out: OutOption = None,
    time_limit: Annotated[
        float, typer.Option(min=0, help="Seconds that a benchmark may take; 0: as many as it wants.")
    ] = 3600,
) -> None:
    """Every benchmark, one after another, each in a process of its own; for a GPU only those in which it has a part.
    One that fails is said so in its report, and the others go on."""
    on_gpu = get_runtime(device).device.type != "cpu"
    if on_gpu:
        typer.echo(f"left out, since the host does all of it: {', '.join(HOST_ONLY)}")
    failed = []
    for name in (name for name in BENCHES if not (on_gpu and name in HOST_ONLY)):
        options = [] if name in HOST_ONLY else ["--device", device]
        options += ["--out", str(out)] if out is not None else []
        why = run_benchmark([name, *options], name, out, time_limit or None)
        if why is not None:
            failed.append(f"{name}: {why}")
    if failed:
        typer.echo("\n".join(["failed:", *failed]))
        raise typer.Exit(1)
