"""What the paused process does: the same guided requests again and again, by several engines. Their answers are those
of the first, which decodes one at a time and drafts nothing."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from support.grammar.tool_guides import TOOLS
from support.wasm.digits import digits
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation

PROMPT = "Text: Ada is a painter. Age 31.\nSchema: "
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
CPU = {"max_batch": 6, "max_seq_len": 288}


class Letters:
    """A matcher in Python, of the tokens that it is given."""

    def __init__(self, allowed: list[int]) -> None:
        self._allowed = allowed

    def accept(self, token: int) -> bool:
        return token in self._allowed

    def fill(self, row: NDArray[np.int32]) -> bool:
        words = row.view(np.uint32)
        for token in self._allowed:
            words[token // 32] |= np.uint32(1 << token % 32)
        return True

    def rollback(self, count: int) -> None: ...

    def is_terminated(self) -> bool:
        return False


class Words:
    """A recogniser in Python, of `abc` again and again."""

    def __init__(self) -> None:
        self._length = 0

    def push_byte(self, byte: int) -> None:
        self._length += 1

    def pop_bytes(self, count: int) -> None:
        self._length -= count

    def byte_allowed(self, byte: int) -> bool:
        return byte == b"abc"[self._length % 3]

    def special_allowed(self, token: int) -> bool:
        return True


@dataclass(frozen=True)
class Kind:
    """What is asked, and by which engines. With `is_fresh` these are made anew for each round."""

    guides: list[Guide | None]
    engines: list[tuple[Speculation, EngineConfig]]
    is_fresh: bool = False

    def ask(self, llm: LLM) -> list[tuple[list[int], str | None]]:
        """Every guide at several temperatures: tokens, and what went wrong."""
        asked = list(itertools.product(self.guides, (0.0, 0.8, 1.5)))
        sampling = [
            SamplingParams(max_tokens=60, temperature=temperature, seed=i)
            for i, (_, temperature) in enumerate(asked)
        ]
        outputs = llm.generate([PROMPT] * len(asked), guide=[guide for guide, _ in asked], sampling=sampling)
        return [(output.token_ids, str(output.error) if output.error else None) for output in outputs]


def many_kinds() -> Kind:
    """Guides of every library, in Python and as programs; of strangers, too."""
    with LLM(device="cpu") as llm:
        vocabulary = llm.client.built.text.vocabulary
    assert vocabulary is not None
    tokens = vocabulary.tokens
    allowed = [i for i, text in enumerate(tokens) if text and all(97 <= byte <= 122 for byte in text)]
    return Kind(
        [
            None,
            Guide.json_schema(PERSON),
            Guide.regex("[a-z]{8,40}"),
            Guide.tools(TOOLS, style="qwen_3", required=True),
            Guide.matcher(lambda: Letters(allowed)),
            Guide.recognizer(Words),
            digits(12),
        ],
        [
            (Speculation.eagle3(num_draft_tokens=3), EngineConfig(overlap=True, **CPU)),
            (Speculation.forced(Speculation.ngram(num_draft_tokens=4)), EngineConfig(overlap=False, **CPU)),
            (Speculation.eagle3(num_draft_tokens=5), EngineConfig(untrusted_guides=True, **CPU)),
        ],
    )


def tools() -> Kind:
    """Calls in llama's style, after free text or at once, by every drafter with overlap and without."""
    calls = Guide.tools(TOOLS, style="llama", required=True)
    drafters = [
        Speculation.ngram(num_draft_tokens=8),
        Speculation.forced(Speculation.ngram(num_draft_tokens=8)),
        Speculation.eagle3(num_draft_tokens=4),
        Speculation.mtp(num_draft_tokens=8),
        Speculation.lookahead(),
        Speculation.draft_model(num_draft_tokens=3),
    ]
    return Kind(
        [calls, Guide.after("</think>", calls, max_free_tokens=8), Guide.tools(TOOLS, style="llama")],
        [
            (drafter, EngineConfig(overlap=overlap, **CPU))
            for drafter in drafters
            for overlap in (True, False)
        ],
        is_fresh=True,
    )


KINDS = {"guides": many_kinds, "tools": tools}


def tell(**what: object) -> None:
    """A line of JSON for whoever pauses this process."""
    print(json.dumps(what), flush=True)


def main(name: str) -> None:
    """Answer until the standard input ends."""
    kind = KINDS[name]()
    with LLM(device="cpu", engine=EngineConfig(graphs="none", **{**CPU, "max_batch": 1})) as plain:
        expected = kind.ask(plain)
    assert not any(error for _, error in expected), expected
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    made = [] if kind.is_fresh else [LLM(device="cpu", speculation=s, engine=e) for s, e in kind.engines]
    for llm in made:
        kind.ask(llm)
    tell(ready=True)
    while not is_over.is_set():
        for number, (speculation, engine) in enumerate(kind.engines):
            llm = made[number] if made else LLM(device="cpu", speculation=speculation, engine=engine)
            answers = kind.ask(llm)
            if not made:
                llm.close()
            wrong = [
                {"engine": number, "request": i, "got": got, "expected": plain}
                for i, (got, plain) in enumerate(zip(answers, expected, strict=True))
                if got != plain
            ]
            tell(answers=len(answers), wrong=wrong)
            if is_over.is_set():
                break
    for llm in made:
        llm.close()


if __name__ == "__main__":
    main(sys.argv[1])
