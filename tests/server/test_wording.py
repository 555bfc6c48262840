"""Messages that a client over HTTP reads: in its own names, and as long as a line or two."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.server.asking import MESSAGES, PROMPT, SCHEMA, ask
from support.server.running import Running
from weft.errors import (
    CapacityError,
    DeadEndError,
    ExecutorError,
    GraphError,
    GuideStateError,
    InputError,
    RequestError,
)
from weft.server.errors import api_error, for_clients

WEFT = Path(__file__).parents[2] / "python" / "weft"
HEARD = (
    "client",
    "core/sampling.py",
    "core/values.py",
    "engine/admission.py",
    "engine/features/beam",
    "engine/scheduler",
    "grammar",
)
"""What reads and checks requests."""
UNHEARD = {
    # How an engine, a vocabulary or a guide is made in Python, and what only Python or an executor can ask.
    "client/builder.py", "client/model_text.py", "client/options.py", "aici/limits.py",
    "grammar/vocabulary/hugging_face.py", "grammar/vocabulary/tokenizer.py", "aici/source.py",
}  # fmt: skip
UNHEARD_WORDS = (
    "max_beam_width", "return_generation_logits", "additional_outputs", "is not a guide; use", "style= of Guide.tools",
    "a linker's --import-memory", "import sys;", "sizes of lookahead decoding",
    "; make it with Speculation.given()",

)  # fmt: skip
PYTHON = re.compile(
    r"[A-Z]\w*(?:Config|Limits|Params)\b|Speculation\.|Guide\.|strict=|--[a-z]|or None\b|of an executor|max_seq_len"
    r"|embedding_bias|beam width"
)


def messages(path: Path) -> Iterator[str]:
    """The texts of a file's messages; what they fill in is 9."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise | ast.Return | ast.Assign):
            parts = list(ast.walk(node))
            inner = {id(one) for part in parts if isinstance(part, ast.JoinedStr) for one in part.values}
            for part in parts:
                if isinstance(part, ast.JoinedStr):
                    yield "".join(
                        str(one.value) if isinstance(one, ast.Constant) else "9" for one in part.values
                    )
                elif isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in inner:
                    yield part.value


def heard() -> Iterator[tuple[str, str]]:
    for room in HEARD:
        place = WEFT / room
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            name = str(file.relative_to(WEFT))
            if name not in UNHEARD:
                yield from ((name, text) for text in messages(file) if " " in text.strip())


def test_no_message_speaks_of_what_python_alone_has() -> None:
    texts = [(name, text) for name, text in heard() if not any(word in text for word in UNHEARD_WORDS)]
    assert sum(bool(PYTHON.search(text)) for _, text in texts) > 10  # what is translated
    assert [(name, text) for name, text in texts if PYTHON.search(for_clients(text))] == []


def test_what_is_left_reads_well() -> None:
    for said, told in (
        ("it is longer than 9 (CompileLimits.source_bytes)", "it is longer than 9"),
        ("lower WasmLimits.memory_bytes or undo_bytes", "give it less memory"),
        ("n may be None", "n may be null"),
    ):
        assert for_clients(said) == told


LONG = "x" * 20_000
CHAT = "v1/chat/completions"


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


ECHOED: dict[str, tuple[str, dict[str, Any]]] = {
    "field": (CHAT, {"messages": MESSAGES, LONG: 1}),
    "field within": (CHAT, {"messages": MESSAGES, "guide": {LONG: 1}}),
    "token": (CHAT, {"messages": MESSAGES, "logit_bias": {LONG: 1}}),
    "token id": (CHAT, {"messages": MESSAGES, "allowed_token_ids": [10**4000]}),
    "model": (CHAT, {"messages": MESSAGES, "model": LONG}),
    "role": (CHAT, {"messages": [{"role": LONG, "content": "x"}]}),
    "role that is a list": (CHAT, {"messages": [{"role": [[LONG]] * 500, "content": "x"}]}),
    "part": (CHAT, {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    "handle": (CHAT, {"messages": MESSAGES, "guide": {"handle": LONG}}),
    "format": (CHAT, {"messages": MESSAGES, "response_format": {"type": LONG}}),
    "function": (CHAT, {"messages": MESSAGES, "tools": [function(LONG)]}),
    "choice": (CHAT, {"messages": MESSAGES, "tools": [function("a")], "tool_choice": function(LONG)}),
    "tag": ("v1/controllers/tags", {"module_id": LONG, "tags": ["a"]}),
    "response": ("v1/responses", {"input": PROMPT, "previous_response_id": LONG}),
    "item": ("v1/responses", {"input": [{"type": LONG}]}),
    "include": ("v1/responses", {"input": PROMPT, "include": [LONG]}),
    "tool": ("v1/responses", {"input": PROMPT, "tools": [{"type": LONG}]}),
    "block": ("v1/messages", {"messages": [{"role": "user", "content": [{"type": LONG}]}], "max_tokens": 4}),
    "custom tool": ("v1/messages", {"messages": MESSAGES, "max_tokens": 4, "tools": [{"type": LONG}]}),
    "route": (f"v1/{LONG}", {}),
}


@pytest.mark.parametrize("name", ECHOED)
def test_what_is_repeated_is_cut(server: Running, name: str) -> None:
    path, body = ECHOED[name]
    status, answer = ask(f"{server.url}/{path}", body)
    assert 400 <= status < 500
    told = answer["error"]
    assert len(told["message"]) < 1100 and len(told["param"] or "") <= 100
    if name not in ("part", "function"):  # weft's own words, of which an end says what to do
        assert len(told["message"]) < 400


UNIQUE: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
TOLD: dict[str, tuple[dict[str, Any], str]] = {
    "a schema": ({"guided_json": UNIQUE}, "give strict: false"),
    "a long prompt": ({"prompt": "a b c " * 1000}, "max_model_len"),
    "many words": ({"stop": ["x"] * 5000}, "stop has 5000 entries"),
    "no drafts": ({"max_drafts": 99}, "or null for the engine's"),
}


@pytest.mark.parametrize("name", TOLD)
def test_a_client_is_told_of_its_own_fields(server: Running, name: str) -> None:
    body, words = TOLD[name]
    status, answer = ask(f"{server.url}/v1/completions", {"prompt": "x", "max_tokens": 4, **body})
    message = answer["error"]["message"]
    assert status == 400 and words in message and not PYTHON.search(message), message


def test_beams_of_a_model_that_has_none(server: Running) -> None:
    body = {"model": "tiny", "prompt": "x", "use_beam_search": True}
    status, answer = ask(f"{server.url}/v1/completions", body)
    assert (status, answer["error"]["param"]) == (400, "use_beam_search")
    status, answer = ask(f"{server.url}/v1/completions", {**body, "model": "plain", "n": 5})
    assert (status, answer["error"]["param"]) == (400, "n")
    status, answer = ask(f"{server.url}/v1/completions", {**body, "model": "plain", "top_k": 3})
    assert status == 400 and "leave out use_beam_search" in answer["error"]["message"]


def test_beams_have_their_likeliest_tokens(server: Running) -> None:
    body = {"model": "plain", "prompt": "x", "use_beam_search": True, "n": 2, "temperature": 0}
    status, answer = ask(f"{server.url}/v1/completions", {**body, "logprobs": 2, "max_tokens": 4})
    assert status == 200 and len(answer["choices"]) == 2
    for choice in answer["choices"]:
        assert all(2 <= len(top) <= 3 for top in choice["logprobs"]["top_logprobs"])


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InputError("x"), 400, None),
        (DeadEndError("x"), 400, None),
        (GuideStateError("x"), 400, "guide_error"),
        (CapacityError("x"), 400, "too_large"),
        (RequestError("the model's logits are all NaN"), 500, "internal_error"),
        (GraphError("x"), 500, "internal_error"),
        (ExecutorError("x"), 503, "engine_stopped"),
        (KeyError("x"), 500, "internal_error"),
    ],
)
def test_whose_fault_it_is_has_a_status(error: Exception, status: int, code: str | None) -> None:
    told = api_error(error)
    assert (told.status, told.code) == (status, code)
