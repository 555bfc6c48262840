"""`weft chat`: a conversation with a model in the terminal. Without a terminal, standard input is one message."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from weft.cli import options as o
from weft.cli import sampling_options as s
from weft.cli.answers import finish, note_model, print_pieces, whole_message
from weft.cli.guides import GuideOptions, naming, read_guide, read_tools, with_guide_options
from weft.cli.inputs import choose_speculation, read_prompts
from weft.cli.options import (
    ANY_LIBRARY,
    DEFAULT,
    MODEL,
    Device,
    Guided,
    SamplingSource,
)
from weft.errors import CapacityError, InputError, RequestError, escaped

if TYPE_CHECKING:
    from weft.core import Output, Piece, SamplingParams
    from weft.grammar.guide import Guide
    from weft.llm import LLM

ANSWER_TOKENS = 1024
"""The maximum length of an answer if neither the command line nor the model sets one."""
MIN_ROOM = 256
"""The oldest messages are dropped until an answer has room for this many tokens, or for a quarter of all positions if
that is less."""
FENCE = '"""'
COMMAND = re.compile(r"/(?P<name>[a-zA-Z]+)(?:\s+(?P<rest>.*))?", re.DOTALL)
HELP = f"""\
/system TEXT   set the system message; without TEXT, show it
/again         answer the last message again (at a temperature above 0, differently)
/clear         begin a new conversation
/save FILE     write the conversation to a file, as JSON
/help          show this
/quit          leave; Ctrl-D, too
{FENCE}            begins and ends a message of several lines
Ctrl-C         stops an answer"""

MaxSeqLen = Annotated[
    int | None, typer.Option(help="Tokens of the conversation and the answer.", rich_help_panel=MODEL)
]


@partial(s.with_sampling_options, without=("n", "logprobs"))
@with_guide_options
def chat(
    *,
    model: o.NamedModel = None,
    same_model: o.Model = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message.")] = None,
    device: o.Where = Device.auto,
    dtype: o.Dtype = "auto",
    activations: o.Rounding = o.ROUNDING,
    kv_cache_dtype: o.CacheDtype = o.CACHE_DTYPE,
    max_seq_len: MaxSeqLen = None,
    guide_options: GuideOptions,
    grammar_backend: o.Library = ANY_LIBRARY,
    speculation: o.Speculate = DEFAULT,
    head: o.Head = None,
    forced: o.ForcedText = False,
    num_draft_tokens: o.DraftCount = "3",
    guide_drafts: o.GuideDrafts = Guided.auto,
    adaptive: o.Adaptive = False,
    generation_config: s.Defaults = SamplingSource.auto,
    **options: Any,
) -> None:
    """Chat with a model in the terminal. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.

    A guide applies to each answer. Without a terminal, standard input is one message; its answer goes to standard
    output.

    Exit codes: 0; 2, an option or input is wrong; 3, the guided answer to standard input was cut.
    """
    if model is not None and same_model is not None:
        raise InputError(f"two models: {model!r}, and {same_model!r} of --model; give one")
    model = model or same_model
    is_terminal = sys.stdin.isatty()
    messages = [] if is_terminal else read_prompts([], [])
    guide = read_guide(guide_options)
    given = s.read_sampling(options)
    chosen = choose_speculation(speculation, head, num_draft_tokens, guide_drafts, forced, model, adaptive)

    from weft.client.generation_config import sampling_defaults
    from weft.config import PACKAGE_MODEL, EngineConfig, model_directory, model_name
    from weft.core import SamplingParams
    from weft.llm import LLM

    defaults = sampling_defaults(model_directory(model), generation_config.value)
    sampling = SamplingParams(**{"max_tokens": ANSWER_TOKENS, **defaults, **given})
    engine = EngineConfig(
        max_batch=1,
        max_seq_len=max_seq_len,
        activation_dtype=activations.value,
        grammar=grammar_backend.value,
        kv_cache_dtype=kv_cache_dtype.value,
    )
    name = model_name(model)
    if name == PACKAGE_MODEL:
        note_model()
    if is_terminal:
        note(f"loading {name} ...")
    with LLM(model, device=device.value, dtype=dtype, speculation=chosen, engine=engine) as llm:
        conversation = Chat(llm, sampling, guide, system, read_tools(guide_options.tools))
        conversation.check()
        if guide is not None:
            with naming(guide_options.source):
                llm.compile(guide).result()
        if not is_terminal:
            finish([conversation.answer(whole_message(message.text)) for message in messages])
            return
        note("/help lists the commands, Ctrl-D leaves")
        conversation.run()


@dataclass
class Chat:
    """A conversation. `messages` are the turns so far, in OpenAI's form, without the system message."""

    llm: LLM
    sampling: SamplingParams
    guide: Guide | None = None
    system: str | None = None
    tools: list[Any] | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def check(self) -> None:
        """Raise `InputError` if the model has no chat template, or the template does not take a system message."""
        self._tokens([{"role": "user", "content": "Hello"}])

    def run(self) -> None:
        """Read messages and commands from the terminal until its end."""
        with suppress(ImportError):
            import readline  # noqa: F401  # line editing and history for `input`
        while True:
            try:
                text = read_message()
            except KeyboardInterrupt:
                print(file=sys.stderr)
                note("Ctrl-D leaves")
                continue
            except UnicodeDecodeError:
                note("the message is not UTF-8 text")
                continue
            except EOFError:
                print(file=sys.stderr)
                return
            command = COMMAND.fullmatch(text)
            name = command["name"].lower() if command is not None else ""
            if name in ("quit", "exit", "bye"):
                return
            try:
                if command is not None:
                    self.do(name, (command["rest"] or "").strip())
                elif text.strip():
                    self.answer(text)
            except (InputError, RequestError, OSError) as error:
                note(escaped(str(error)))
            except KeyboardInterrupt:  # before the answer began, or after it
                note("stopped")

    def do(self, name: str, rest: str) -> None:
        """Execute a command. Raises `InputError` for an unknown one."""
        match name:
            case "help":
                note(HELP)
            case "system" if rest:
                self.system = rest
                note("the system message is set")
            case "system":
                note(f"system message: {self.system}" if self.system else "there is no system message")
            case "clear":
                self.messages.clear()
                note("a new conversation")
            case "again":
                self.again()
            case "save":
                self.save(rest)
            case _:
                raise InputError(
                    f"there is no command /{name}; /help lists them. To send this as a message, begin with a space"
                )

    def answer(self, text: str, replaces_last: bool = False) -> Output:
        """Answer a message, print the answer as it is generated, and append both to the conversation. With
        `replaces_last` they replace the last two messages, and the seed is a new one. A failed answer is returned with
        its `error`, and leaves the conversation as it was; so does an exception.
        """
        earlier = self.messages[:-2] if replaces_last else self.messages
        messages, prompt = self._fitting([*earlier, {"role": "user", "content": text}])
        room = self.llm.config.max_seq_len - len(prompt)
        sampling = replace(self.sampling, max_tokens=min(self.sampling.max_tokens, room))
        if replaces_last:
            sampling = replace(sampling, seed=None)
        stream = cast("Generator[Piece]", self.llm.stream(prompt, sampling, guide=self.guide))
        with closing(stream) as pieces:  # an interrupted answer is cancelled
            output = print_pieces(self.llm, pieces, stops_on_interrupt=sys.stdin.isatty())
        if output.error is not None:
            if sys.stdin.isatty():
                note(escaped(str(output.error)))
            return output
        self.messages = [*messages, {"role": "assistant", "content": output.text}]
        if sys.stdout.isatty():
            note(summary(output))
        return output

    def again(self) -> None:
        """Answer the last message again, with a new seed."""
        if not self.messages:
            raise InputError("there is no answer yet")
        self.answer(self.messages[-2]["content"], replaces_last=True)

    def save(self, name: str) -> None:
        """Write the conversation to a file: a JSON list of messages. Raises `InputError` without a name, and `OSError`
        if the file can't be written."""
        if not name:
            raise InputError("give the name of a file: /save FILE")
        from weft.core.files import write_whole

        path, messages = Path(os.path.expanduser(name)), self._whole(self.messages)
        write_whole(path, (json.dumps(messages, indent=2, ensure_ascii=False) + "\n").encode())
        note(f"saved {len(messages)} messages to {path}")

    def _fitting(self, messages: list[dict[str, str]]) -> tuple[list[dict[str, str]], Sequence[int]]:
        """The messages without the oldest turns, so that an answer has room, and their token ids. A note says what is
        dropped. Raises `InputError` if the last message alone leaves no room."""
        length = self.llm.config.max_seq_len
        room = min(MIN_ROOM, length // 4)
        dropped = 0
        while True:
            kept = messages[dropped:]
            with suppress(CapacityError):
                tokens = self._tokens(kept)
                if len(tokens) + room <= length:
                    break
            if len(kept) == 1:
                raise InputError(
                    f"the message is too long: the engine has {length} positions, and an answer needs some of them; "
                    "shorten it, or raise --max-seq-len"
                )
            dropped += 2  # a question and its answer: templates expect turns
        if dropped:
            note(f"the conversation fills {length} positions; its {dropped} oldest messages are dropped")
        return kept, tokens

    def _tokens(self, messages: Sequence[dict[str, str]]) -> Sequence[int]:
        return self.llm.chat_tokens(self._whole(messages), tools=self.tools)

    def _whole(self, messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
        """The messages after the system message, if there is one."""
        return [*([] if self.system is None else [{"role": "system", "content": self.system}]), *messages]


def read_message() -> str:
    """Read a message from the terminal: a line, or the lines between two fences. Raises `EOFError` at its end."""
    text = read_line("> ")
    if not text.startswith(FENCE):
        return text
    lines = [text.removeprefix(FENCE)]
    while not lines[-1].rstrip().endswith(FENCE):
        lines.append(read_line("… "))
    lines[-1] = lines[-1].rstrip().removesuffix(FENCE)
    return "\n".join(lines).strip("\n")


def read_line(prompt: str) -> str:
    """Read a line from the terminal. If stdout leads elsewhere, the prompt goes to stderr."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def note(text: str) -> None:
    """Print a text that is no part of the conversation: dimmed, and on stderr unless stdout is a terminal."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=not sys.stdout.isatty(), highlight=False, soft_wrap=True).print(Text(text, style="dim"))


def summary(output: Output) -> str:
    """A line about an answer: its length, its speed, and why it ended if it is not complete."""
    from weft.cli.statistics import tokens_per_second

    stats = output.stats
    parts = [f"{stats.output_tokens} tokens"]
    speed = tokens_per_second([(stats.output_tokens, stats.scheduled_at, stats.last_token_at)])
    if speed:
        parts.append(f"{speed:.1f} tokens/s")
    if stats.drafted_iterations:
        parts.append(f"{stats.output_tokens / stats.iterations:.2f} tokens per iteration")
    if output.finish_reason == "cancelled":
        parts.append("stopped")
    elif output.finish_reason == "length":
        parts.append("cut at the limit; --max-tokens raises it")
    return " · ".join(parts)
