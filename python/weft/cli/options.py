"""Options of `weft generate`, and of other commands that load a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args

import typer

from weft import config, core, registry

T = TypeVar("T")


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Guided(StrEnum):
    auto = "auto"
    on = "on"
    off = "off"


class SamplingSource(StrEnum):
    auto = "auto"
    weft = "weft"


if TYPE_CHECKING:
    # At run time, the members come from the registry, and from the types of settings.
    Drafter = StrEnum
    GrammarBackend = StrEnum

    class Member(Generic[T]):
        """A member of an enum, with one of a type's values."""

        def __init__(self, value: T) -> None:
            self.value = value

    ActivationDtype = Member[config.ActivationDtype]
    Graphs = Member[config.Graphs]
    HostTasks = Member[config.HostTasks]
    KvCacheDtype = Member[config.KvCacheDtype]
    OnLength = Member[core.OnLength]
else:
    # The drafter "given" needs an expected answer, for which the command line has no option.
    _drafters = [name for name in registry.names("drafters") if name != "given"]
    Drafter = StrEnum("Drafter", {name: name for name in ("auto", "none", *_drafters)})
    """What --speculation takes: what the registry has for a prompt alone, and auto and none."""
    GrammarBackend = StrEnum("GrammarBackend", {name: name for name in registry.names("grammars")})
    ActivationDtype, Graphs, HostTasks, KvCacheDtype, OnLength = (
        StrEnum(name, {value: value for value in get_args(values)})
        for name, values in (
            ("ActivationDtype", config.ActivationDtype),
            ("Graphs", config.Graphs),
            ("HostTasks", config.HostTasks),
            ("KvCacheDtype", config.KvCacheDtype),
            ("OnLength", core.OnLength),
        )
    )

DEFAULT = Drafter("auto")
ANY_LIBRARY = GrammarBackend("auto")
ROUNDING = ActivationDtype(config.EngineConfig.activation_dtype)
CACHE_DTYPE = KvCacheDtype(config.EngineConfig.kv_cache_dtype)
GRAPHS, HOST_TASKS = Graphs(config.EngineConfig.graphs), HostTasks(config.EngineConfig.host_tasks)
MODEL, GUIDE, TOOLS, DRAFTS, SAMPLING, OUTPUT = "Model", "Guide", "Tools", "Speculation", "Sampling", "Output"


def _option(*names: str, help: str, panel: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


# -- prompts

Prompts = Annotated[
    list[str] | None,
    typer.Argument(metavar="PROMPT", help="Prompts; - is standard input.", show_default=False),
]
Files = Annotated[
    list[Path] | None,
    _option("--file", "-f", metavar="FILE", help="A file that holds a prompt. Repeatable."),
]
Chat = Annotated[
    bool, _option("--chat", help="Apply the chat template to each prompt. --system and --tools imply it.")
]
System = Annotated[
    str | None,
    _option("--system", metavar="TEXT", help="A system message before each prompt."),
]

# -- the model

Model = Annotated[
    str | None,
    _option(
        "--model",
        "-m",
        metavar="NAME|DIR|FILE",
        panel=MODEL,
        help="A Hugging Face directory, a GGUF file, or a name of `weft models` or of the hub (ORG/NAME). Default: "
        "weft-tiny.",
    ),
]
NamedModel = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|DIR|FILE",
        help="A Hugging Face directory, a GGUF file, or a name of `weft models` or of the hub (ORG/NAME).",
    ),
]
"""The same as an argument, for commands without other arguments."""
Where = Annotated[
    Device, _option("--device", panel=MODEL, help="The device; auto is CUDA if there is a GPU.")
]
Dtype = Annotated[
    str,
    _option(
        "--dtype",
        metavar="NAME",
        panel=MODEL,
        help="auto, float32, float16 or bfloat16; on a CPU, the dtype of the weights only.",
    ),
]
Rounding = Annotated[
    ActivationDtype,
    _option(
        "--activations",
        panel=MODEL,
        help="How products on a CPU round the rows that they read, see docs/precision.md; auto is the fastest way.",
    ),
]
CacheDtype = Annotated[
    KvCacheDtype,
    _option(
        "--kv-cache-dtype",
        panel=MODEL,
        help="The dtype of cached keys and values, see docs/kv-cache.md; fewer bits take less memory and time.",
    ),
]
GraphKind = Annotated[
    Graphs,
    _option(
        "--graphs",
        panel=MODEL,
        help="One graph an iteration, split around the grammar's work, or none (eager).",
    ),
]
TaskKind = Annotated[
    HostTasks,
    _option(
        "--host-tasks",
        panel=MODEL,
        help="How a graph calls the grammar: by host nodes, or by words that a thread polls.",
    ),
]

# -- guides

AnyJson = Annotated[bool, _option("--json", panel=GUIDE, help="Any JSON.")]
JsonSchema = Annotated[
    str | None,
    _option(
        "--json-schema",
        "-s",
        metavar="FILE|JSON",
        panel=GUIDE,
        help="A JSON schema: a file, or the schema itself.",
    ),
]
Strict = Annotated[
    bool,
    _option(
        "--strict/--no-strict",
        panel=GUIDE,
        help="Refuse a schema that can't be enforced in full; --no-strict enforces what it can.",
    ),
]
OpenObjects = Annotated[
    bool,
    _option(
        "--open-objects",
        panel=GUIDE,
        help="Objects with named properties may have others, if the schema allows it.",
    ),
]
Regex = Annotated[
    str | None, _option("--regex", "-r", metavar="REGEX", panel=GUIDE, help="A regular expression.")
]
Ebnf = Annotated[
    Path | None, _option("--ebnf", metavar="FILE", panel=GUIDE, help="An EBNF grammar (root rule: root).")
]
Lark = Annotated[
    Path | None,
    _option("--lark", metavar="FILE", panel=GUIDE, help="A grammar in LLGuidance's Lark (root rule: start)."),
]
Choice = Annotated[
    list[str] | None,
    _option("--choice", metavar="TEXT", panel=GUIDE, help="A text that the answer may be. Repeatable."),
]
StructuralTag = Annotated[
    Path | None,
    _option(
        "--structural-tag", metavar="FILE", panel=GUIDE, help="A structural tag (JSON), see docs/tools.md."
    ),
]
Wasm = Annotated[
    Path | None,
    _option(
        "--wasm",
        metavar="FILE",
        panel=GUIDE,
        help="A program in WebAssembly (.wasm or .wat), see docs/wasm.md.",
    ),
]
WasmArg = Annotated[
    str | None, _option("--wasm-arg", metavar="TEXT", panel=GUIDE, help="The argument of the program.")
]
After = Annotated[
    str | None,
    _option(
        "--after",
        metavar="TEXT",
        panel=GUIDE,
        help="Free text until this text or special token, then what the options above describe.",
    ),
]
MaxFreeTokens = Annotated[
    int | None,
    _option(
        "--max-free-tokens",
        metavar="N",
        panel=GUIDE,
        help="Maximum length of the free text in tokens; then --after's text must follow.",
    ),
]
Library = Annotated[
    GrammarBackend,
    _option(
        "--grammar-backend",
        panel=GUIDE,
        help="The library that compiles the guide; auto picks the one that enforces more of it.",
    ),
]
Untrusted = Annotated[
    bool,
    _option(
        "--untrusted",
        panel=GUIDE,
        help="The guide is untrusted: tighter limits, and a trial in another process, see docs/untrusted.md.",
    ),
]

# -- tools

Tools = Annotated[
    Path | None,
    _option(
        "--tools",
        metavar="FILE",
        panel=TOOLS,
        help="Functions that the model may call: a JSON list in OpenAI's form.",
    ),
]
ToolStyle = Annotated[
    str,
    _option(
        "--tool-style",
        metavar="NAME",
        panel=TOOLS,
        help="The format of calls, see docs/tools.md; auto is what the chat template shows.",
    ),
]
ToolChoice = Annotated[
    str,
    _option(
        "--tool-choice",
        metavar="auto|required|NAME",
        panel=TOOLS,
        help="auto: calls if the model likes; required: at least one; NAME: one of this function.",
    ),
]

# -- speculation

Speculate = Annotated[
    Drafter,
    _option(
        "--speculation",
        panel=DRAFTS,
        help="The drafter; auto is the model's EAGLE3 head if it has one, else none.",
    ),
]
Head = Annotated[
    Path | None,
    _option(
        "--head", metavar="DIR", panel=DRAFTS, help="The EAGLE3 head, the MTP layers or the draft model."
    ),
]
ForcedText = Annotated[
    bool,
    _option(
        "--forced", panel=DRAFTS, help="Draft text that the grammar forces first; the drafter continues."
    ),
]
DraftCount = Annotated[
    str,
    _option(
        "--num-draft-tokens",
        "-k",
        metavar="N",
        panel=DRAFTS,
        help="Drafts in an iteration, 1 to 8; or by batch size: 1:5,4:3,16:0.",
    ),
]
Adaptive = Annotated[
    bool,
    _option(
        "--adaptive",
        panel=DRAFTS,
        help="Make fewer drafts where they do not pay, by measured times and acceptance.",
    ),
]
GuideDrafts = Annotated[
    Guided,
    _option(
        "--guide-drafts",
        panel=DRAFTS,
        help="Whether the grammar masks drafts too; auto measures whether that pays.",
    ),
]
