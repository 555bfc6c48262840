"""The command line: `weft generate`, `weft inspect`, `weft bench`, `weft demo`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from weft.config import MAX_DRAFT_TOKENS, Speculation, is_debug, package_model_path
from weft.errors import InputError, ModelError, WeftError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Language-model decoding under a grammar and with speculation, inside one CUDA graph.",
)


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Drafter(StrEnum):
    auto = "auto"
    none = "none"
    eagle3 = "eagle3"


class Guided(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


ModelOption = Annotated[
    Path | None,
    typer.Option("--model", "-m", help="A Hugging Face directory. Default: weft-tiny, inside the package."),
]
DeviceOption = Annotated[Device, typer.Option(help="Where to run; auto is CUDA where there is a GPU.")]
DrafterOption = Annotated[
    Drafter, typer.Option("--speculation", help="The drafter; auto takes the model directory's own head.")
]
HeadOption = Annotated[Path | None, typer.Option("--head", help="Directory of an EAGLE3 head.")]
DraftsOption = Annotated[
    int, typer.Option("--num-draft-tokens", "-k", help="Tokens drafted in an iteration, 1 to 8.")
]


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", help="A file that holds a prompt; may be given again."),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = Device.auto,
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    chat: Annotated[bool, typer.Option("--chat", help="Send the prompt through the chat template.")] = False,
    any_json: Annotated[bool, typer.Option("--json", help="Answer with any JSON.")] = False,
    json_schema: Annotated[
        str | None, typer.Option("--json-schema", "-s", help="A JSON schema: a file, or the schema itself.")
    ] = None,
    regex: Annotated[str | None, typer.Option("--regex", "-r", help="A regular expression.")] = None,
    ebnf: Annotated[
        Path | None, typer.Option("--ebnf", help="A file with an EBNF grammar (root rule: root).")
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option("--choice", help="One of these; give it again for each.")
    ] = None,
    speculation: DrafterOption = Drafter.auto,
    head: HeadOption = None,
    num_draft_tokens: DraftsOption = 3,
    guide_drafts: Annotated[Guided, typer.Option(help="Whether the grammar masks drafts too.")] = Guided.auto,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="The longest answer, in tokens.")
    ] = 256,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Decides the text; drawn afresh if not given.")] = None,
    eager: Annotated[
        bool, typer.Option("--eager", help="Issue every iteration instead of replaying a graph.")
    ] = False,
    stats_json: Annotated[Path | None, typer.Option(help="Write statistics of the run to this file.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome/Perfetto trace of the run to this file.")
    ] = None,
) -> None:
    """Answer a prompt. On a terminal, tokens that were drafted and accepted are coloured apart."""
    from weft.config import EngineConfig
    from weft.llm import LLM

    prompts = read_prompts(prompt, file or [])
    guide = read_guide(any_json, json_schema, regex, ebnf, choice)
    chosen = choose_speculation(speculation, head, num_draft_tokens, guide_drafts, model)
    with LLM(
        model, device=device.value, dtype=dtype, speculation=chosen, engine=EngineConfig(capture=not eager)
    ) as llm:
        run = Run(llm, guide, chat, max_tokens, temperature, seed)
        if trace is None:
            outputs = run(prompts)
        else:
            from weft.trace import recording

            with recording(llm.runtime, trace):
                outputs = run(prompts)
        if stats_json is not None:
            stats_json.write_text(json.dumps(statistics(llm, outputs), indent=2) + "\n")
    for output in outputs:
        if output.stats.guided_valid is False and output.finish_reason == "length":
            tokens = len(output.token_ids)
            typer.echo(f"weft: an answer was cut after {tokens} tokens, before its guide ended", err=True)
    if any(output.error is not None for output in outputs):
        raise typer.Exit(1)


@app.command()
def inspect(
    model: ModelOption = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Dump the nodes and edges of a captured guided iteration.")
    ] = False,
    device: DeviceOption = Device.auto,
) -> None:
    """Say what weft found: versions, drivers, GPU, grammar interfaces, and what is in a model directory."""
    from weft import inspection

    console = Console(highlight=False, soft_wrap=True)
    path = model or package_model_path()
    if not path.is_dir():
        raise ModelError(f"{path}: no such directory; give the directory of a Hugging Face checkpoint")
    for line in inspection.report(path):
        console.print(line, markup=False)
    if graph:
        chosen = choose_speculation(Drafter.auto, None, 3, Guided.auto, model)
        for line in inspection.graph_dump(model, device.value, chosen):
            console.print(line, markup=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the trace and its picture.")] = Path("out"),
) -> None:
    """Show guided decoding with EAGLE3 drafts on weft-tiny, in one captured graph."""
    from weft import demo as shown

    shown.run(out)


@dataclass
class Run:
    """Answers prompts and prints them."""

    llm: Any
    guide: Any
    chat: bool
    max_tokens: int
    temperature: float
    seed: int | None

    def __call__(self, prompts: list[str]) -> list[Any]:
        from weft.core import SamplingParams

        sampling = SamplingParams(max_tokens=self.max_tokens, temperature=self.temperature, seed=self.seed)
        inputs = [self.llm.chat_tokens([{"role": "user", "content": p}]) if self.chat else p for p in prompts]
        if len(inputs) == 1:
            return [self._stream(inputs[0], sampling)]
        outputs: list[Any] = self.llm.generate(inputs, guide=self.guide, sampling=sampling)
        for output in outputs:
            if output.error is not None:
                typer.echo(f"error: {output.error}", err=True)
            print(output.text)
        return outputs

    def _stream(self, prompt: Any, sampling: Any) -> Any:
        from weft.text import coloured

        console = Console(highlight=False, soft_wrap=True)
        output = None
        for piece in self.llm.stream(prompt, guide=self.guide, sampling=sampling):
            console.print(
                coloured(self.llm.tokenizer, piece) if console.is_terminal else piece.text,
                end="",
                markup=False,
            )
            output = piece.output or output
        console.print()
        return output


def read_text(path: Path, what: str) -> str:
    """A text file of the command line; `what` is the option that named it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{what}: can't read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{what}: {str(path)!r} is not UTF-8 text") from None


def read_prompts(prompt: str | None, files: list[Path]) -> list[str]:
    """The prompts of the command line, in its order."""
    prompts = []
    if prompt == "-" or (prompt is None and not files):
        if sys.stdin.isatty():
            raise InputError("no prompt; give one as an argument, with --file, or on standard input")
        try:
            prompts.append(typer.get_text_stream("stdin", encoding="utf-8", errors="strict").read())
        except UnicodeDecodeError:
            raise InputError("standard input is not UTF-8 text") from None
    elif prompt is not None:
        prompts.append(prompt)
    prompts += [read_text(path, "--file") for path in files]
    if not all(prompts):
        raise InputError(
            "the prompt is empty; give some text as an argument, with --file, or on standard input"
        )
    return prompts


def read_guide(
    any_json: bool, schema: str | None, regex: str | None, ebnf: Path | None, choice: list[str] | None
) -> Any:
    """The one guide of the command line, or None."""
    from weft.grammar.guide import Guide

    options = {
        "--json": any_json or None,
        "--json-schema": schema,
        "--regex": regex,
        "--ebnf": ebnf,
        "--choice": choice or None,
    }
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} were given; an answer has one guide")
    if any_json:
        return Guide.json()
    if schema is not None:
        is_inline = schema.lstrip().startswith(("{", "[", '"', "true", "false")) or not schema.strip()
        return Guide.json_schema(schema if is_inline else read_text(Path(schema), "--json-schema"))
    if regex is not None:
        return Guide.regex(regex)
    if ebnf is not None:
        return Guide.ebnf(read_text(ebnf, "--ebnf"))
    return Guide.choice(choice) if choice else None


def choose_speculation(
    drafter: Drafter, head: Path | None, num_draft_tokens: int, guided: Guided, model: Path | None
) -> Speculation:
    """The speculation of the command line; auto is EAGLE3 where there is a head."""
    if not 1 <= num_draft_tokens <= MAX_DRAFT_TOKENS:
        raise InputError(
            f"--num-draft-tokens is {num_draft_tokens}; it must be 1 to {MAX_DRAFT_TOKENS} "
            "(for no drafts use --speculation none)"
        )
    own = (model or package_model_path()) / "eagle3"
    if drafter is Drafter.none or (drafter is Drafter.auto and head is None and not own.is_dir()):
        if head is not None:
            raise InputError("--head contradicts --speculation none")
        return Speculation.none()
    drafts: Any = {"auto": "auto", "on": True, "off": False}[guided.value]
    return Speculation.eagle3(head, num_draft_tokens=num_draft_tokens, guide_drafts=drafts)


def statistics(llm: Any, outputs: list[Any]) -> dict[str, Any]:
    """What `--stats-json` writes."""
    stats = [output.stats for output in outputs]
    drafted = sum(s.drafted_iterations for s in stats)
    accepted = sum(s.accepted_drafts for s in stats)
    seconds = max((s.total_s for s in stats), default=0.0)
    valid = [s.guided_valid for s in stats if s.guided_valid is not None]
    return {
        "device": str(llm.runtime.device),
        "model": str(llm.model_path),
        "speculation": llm.speculation.drafter or "none",
        "num_draft_tokens": llm.speculation.num_draft_tokens,
        "prompt_tokens": sum(s.prompt_tokens for s in stats),
        "output_tokens": sum(s.output_tokens for s in stats),
        "iterations": llm.num_iterations,
        "acceptance_length": 1.0 + accepted / drafted if drafted else 1.0,
        "graph_replays": llm.num_graph_replays,
        "tokens_per_second": sum(s.output_tokens for s in stats) / seconds if seconds else 0.0,
        "time_to_first_token_s": min((s.time_to_first_token_s for s in stats), default=0.0),
        "guided_valid": all(valid) if valid else None,
        "finish_reason": outputs[0].finish_reason
        if len(outputs) == 1
        else [o.finish_reason for o in outputs],
    }


def main() -> None:
    """Entry point: errors of weft are one line on stderr and exit code 2."""
    from weft.bench.cli import app as bench_app

    app.add_typer(bench_app, name="bench")
    try:
        app()
    except (WeftError, OSError) as error:
        if is_debug():
            raise
        print(f"weft: {type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
