"""The protocol between the runner and an engine's process: one JSON object per line, and a reply to each.

The runner writes to the engine's stdin: `open` with the config, `prepare` with prompts, `answer` with a request,
`close`. The process replies on its original stdout. All other output of its libraries goes to stderr. The processes
run in separate environments, so this module uses only the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Protocol

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Config:
    """The configuration of an engine. `model` is a directory or a GGUF file; `draft` is the GGUF file of a draft
    model, or None. At most `batch` prompts are answered at once. A prompt with its answer has at most `max_seq_len`
    tokens."""

    model: str
    dtype: str
    batch: int
    threads: int
    max_seq_len: int
    drafter: str = "none"
    num_drafts: int = 0
    draft: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and the JSON schema of its answer. None: free text."""

    ids: list[int]
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Request:
    """Prompts to answer greedily with at most `max_tokens` tokens each. With `exact`, each answer has exactly that
    many tokens, even after an end token."""

    prompts: list[Prompt]
    max_tokens: int
    exact: bool


@dataclass(frozen=True)
class Answer:
    """An answer. `num_tokens` includes the end token. `decode_s` is the time from the first token to the last.
    `is_whole`: the limit did not cut it."""

    num_tokens: int
    text: str
    decode_s: float
    is_whole: bool


@dataclass(frozen=True)
class Answers:
    """Answers in the order of the prompts, and the seconds from the first prompt to the last answer."""

    seconds: float
    answers: list[Answer]


class Side(Protocol):
    """An engine that has been opened."""

    versions: dict[str, str]

    def prepare(self, prompts: list[Prompt]) -> None:
        """Compile the prompts' schemas."""

    def answer(self, request: Request) -> Answers:
        """Answer all prompts of a request."""


def to_line(message: dict[str, Any]) -> bytes:
    """Encode a message as a line."""
    return json.dumps(message).encode() + b"\n"


def request_of(data: dict[str, Any]) -> Request:
    """Decode the request of a message."""
    return Request([Prompt(**p) for p in data["prompts"]], data["max_tokens"], data["exact"])


def answers_of(data: dict[str, Any]) -> Answers:
    """Decode the answers of a message."""
    return Answers(data["seconds"], [Answer(**a) for a in data["answers"]])


def end_with_parent() -> None:
    """Let the system end this process when its parent ends, even while this process is stopped."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(open_side: Callable[[Config], Side]) -> None:
    """Run an engine's process: open the configured engine, and answer until the runner sends `close` or exits.
    Errors are sent as replies."""
    end_with_parent()
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    side: Side | None = None
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message["do"] == "close":
            break
        try:
            if message["do"] == "open":
                side = open_side(Config(**message["config"]))
            _reply(replies, _done(side, message))
        except Exception as error:
            traceback.print_exc()
            _reply(replies, {"error": f"{type(error).__name__}: {error}"})
    sys.stderr.flush()
    os._exit(0)  # threads of libraries may never end


def _done(side: Side | None, message: dict[str, Any]) -> dict[str, Any]:
    assert side is not None, "nothing is open"
    match message["do"]:
        case "open":
            return {"versions": side.versions}
        case "prepare":
            side.prepare([Prompt(**p) for p in message["prompts"]])
            return {}
        case "answer":
            return asdict(side.answer(request_of(message["request"])))
    raise ValueError(f"unknown message {message['do']!r}")


def _reply(replies: IO[bytes], message: dict[str, Any]) -> None:
    replies.write(to_line(message))
