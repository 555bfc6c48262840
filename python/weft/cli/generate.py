"""`weft generate`."""

from __future__ import annotations

import json
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import registry
from weft.cli.answers import Run, statistics
from weft.cli.inputs import (
    DEFAULT,
    Drafter,
    Guided,
    check_output,
    choose_speculation,
    read_bias,
    read_guide,
    read_prompts,
    read_trigger,
)
from weft.errors import InputError
from weft.files import write_whole


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class OnLength(Enum):
    cut = "cut"
    close = "close"


if TYPE_CHECKING:
    GrammarBackend = StrEnum  # its members are known when it runs
else:
    GrammarBackend = StrEnum("GrammarBackend", {name: name for name in registry.names("grammars")})
AUTO = GrammarBackend("auto")


class Graphs(Enum):
    one = "one"
    split = "split"
    none = "none"


class HostTasks(Enum):
    callback = "callback"
    polling = "polling"


HostTasksOption = Annotated[
    HostTasks,
    typer.Option(help="How a graph calls the grammar: by host nodes, or by words that a thread polls."),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        help="A Hugging Face directory, or weft-tiny, which weft brings along (the default).",
    ),
]
DeviceOption = Annotated[Device, typer.Option(help="Where to run; auto is CUDA where there is a GPU.")]
SAMPLING = "Sampling"


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", help="A file that holds a prompt; may be given again."),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = Device.auto,
    dtype: Annotated[
        str, typer.Option(help="auto, float32, float16 or bfloat16; on the CPU, of the weights.")
    ] = "auto",
    chat: Annotated[bool, typer.Option("--chat", help="Send the prompt through the chat template.")] = False,
    any_json: Annotated[bool, typer.Option("--json", help="Answer with any JSON.")] = False,
    json_schema: Annotated[
        str | None, typer.Option("--json-schema", "-s", help="A JSON schema: a file, or the schema itself.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--no-strict",
            help="A schema is enforced whole or refused; or as far as can be, and --stats-json tells the rest.",
        ),
    ] = True,
    open_objects: Annotated[
        bool,
        typer.Option(
            "--open-objects", help="Objects that name properties may have others, where the schema allows it."
        ),
    ] = False,
    regex: Annotated[str | None, typer.Option("--regex", "-r", help="A regular expression.")] = None,
    ebnf: Annotated[
        Path | None, typer.Option("--ebnf", help="A file with an EBNF grammar (root rule: root).")
    ] = None,
    lark: Annotated[
        Path | None,
        typer.Option("--lark", help="A file with a grammar in LLGuidance's Lark (root rule: start)."),
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option("--choice", help="One of these; give it again for each.")
    ] = None,
    wasm: Annotated[
        Path | None,
        typer.Option("--wasm", help="A program in WebAssembly (.wasm or .wat), see docs/wasm.md."),
    ] = None,
    wasm_arg: Annotated[str | None, typer.Option("--wasm-arg", help="The argument of the program.")] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            help="Free text until this text or special token, then what the options above describe.",
        ),
    ] = None,
    max_free_tokens: Annotated[
        int | None, typer.Option(help="After so many tokens of free text nothing but --after's may come.")
    ] = None,
    grammar_backend: Annotated[
        GrammarBackend,
        typer.Option(help="What compiles the guide; auto is the library that enforces more of it."),
    ] = AUTO,
    untrusted: Annotated[
        bool,
        typer.Option(
            "--untrusted",
            help="The guide is a stranger's: tighter limits, and a trial in another process, see docs/untrusted.md.",
        ),
    ] = False,
    speculation: Annotated[
        Drafter, typer.Option(help="What drafts; auto is the model directory's own EAGLE3 head, or nothing.")
    ] = DEFAULT,
    head: Annotated[
        Path | None, typer.Option(help="Directory of an EAGLE3 head, of MTP layers or of a draft model.")
    ] = None,
    forced: Annotated[
        bool,
        typer.Option("--forced", help="Draft text that the grammar forces first; the drafter continues."),
    ] = False,
    num_draft_tokens: Annotated[
        str,
        typer.Option(
            "--num-draft-tokens", "-k", help="Drafts in an iteration, 1 to 8; or by batch size: 1:5,4:3,16:0."
        ),
    ] = "3",
    guide_drafts: Annotated[
        Guided, typer.Option(help="Whether the grammar masks drafts too; auto measures whether that pays.")
    ] = Guided.auto,
    graphs: Annotated[
        Graphs, typer.Option(help="One graph an iteration, split around the grammar's work, or none (eager).")
    ] = Graphs.one,
    host_tasks: HostTasksOption = HostTasks.callback,
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", "-n", help="The longest answer, in tokens.", rich_help_panel=SAMPLING),
    ] = 256,
    on_length: Annotated[
        OnLength,
        typer.Option(
            help="At --max-tokens an answer is cut, or a guided one is whole by then.",
            rich_help_panel=SAMPLING,
        ),
    ] = OnLength.cut,
    min_tokens: Annotated[
        int, typer.Option(help="No end before so many tokens.", rich_help_panel=SAMPLING)
    ] = 0,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="0 is greedy.", rich_help_panel=SAMPLING)
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 is all.", rich_help_panel=SAMPLING)] = 0,
    top_p: Annotated[float, typer.Option(help="1 is all.", rich_help_panel=SAMPLING)] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 is all.", rich_help_panel=SAMPLING)] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="1 is none.", rich_help_panel=SAMPLING)] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="0 is none.", rich_help_panel=SAMPLING)] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="0 is none.", rich_help_panel=SAMPLING)] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(help="TOKEN_ID=BIAS, -inf forbids; again for each.", rich_help_panel=SAMPLING),
    ] = None,
    bad_word: Annotated[
        list[str] | None,
        typer.Option(
            help="A text not to be written: blocked are its spellings in tokens, by itself and after a space, up to 32 "
            "other ones of each, but no tokens that reach beyond it; again for each.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="A text that ends the answer; again for each.", rich_help_panel=SAMPLING),
    ] = None,
    stop_token_id: Annotated[
        list[int] | None,
        typer.Option(help="A token that ends the answer; again for each.", rich_help_panel=SAMPLING),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Decides the text; drawn afresh if not given.", rich_help_panel=SAMPLING),
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="Log-probabilities of each token and of so many likeliest, 0 to 20; they go into --stats-json.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    stats_json: Annotated[
        Path | None,
        typer.Option(
            help="Write statistics of the run to this file. finish_reason is a text for one prompt and a list for "
            "several; logprobs is a list for each prompt."
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome/Perfetto trace of the run to this file.")
    ] = None,
) -> None:
    """Answer a prompt. On a terminal, tokens that were drafted and accepted are coloured apart."""
    from weft.config import EngineConfig
    from weft.core import SamplingParams
    from weft.llm import LLM

    check_output(stats_json, "--stats-json")
    check_output(trace, "--trace")
    prompts = read_prompts(prompt, file or [])
    chosen_guide = read_guide(
        any_json, json_schema, regex, ebnf, choice, wasm, wasm_arg, lark, strict, open_objects
    )
    guide = read_trigger(chosen_guide, after, max_free_tokens)
    if untrusted and guide is None:
        raise InputError("--untrusted is said of a guide; give one, such as --json-schema")
    chosen = choose_speculation(speculation, head, num_draft_tokens, guide_drafts, forced, model)
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        on_length=on_length.value,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=read_bias(logit_bias or []),
        bad_words=bad_word or (),
        stop=stop or (),
        stop_token_ids=stop_token_id or (),
        seed=seed,
        logprobs=logprobs,
    )
    engine = EngineConfig(
        graphs=graphs.value,
        host_tasks=host_tasks.value,
        grammar=grammar_backend.value,
        untrusted_guides=untrusted,
    )
    with LLM(model, device=device.value, dtype=dtype, speculation=chosen, engine=engine) as llm:
        run = Run(llm, guide, chat, sampling)
        if trace is None:
            outputs = run(prompts)
        else:
            from weft.trace import recording

            with recording(llm.runtime, trace):
                outputs = run(prompts)
        if stats_json is not None:
            write_whole(stats_json, (json.dumps(statistics(llm, outputs), indent=2) + "\n").encode())
    if len(outputs) == 1 and outputs[0].error is not None:
        raise outputs[0].error
    for output in outputs:
        if output.error is not None or output.stats.guided_valid is not False:
            continue
        if output.finish_reason == "stop" and output.stopped_by is None:
            left_out = "; ".join(output.guide_notes)
            typer.echo(f"weft: an answer breaks its schema, of which was left out: {left_out}", err=True)
        else:
            by = f"by {output.stopped_by!r}" if output.stopped_by is not None else "by --max-tokens"
            typer.echo(
                f"weft: an answer of {len(output.token_ids)} tokens was cut {by}, before its guide ended",
                err=True,
            )
    if any(output.error is not None for output in outputs):
        raise typer.Exit(1)
