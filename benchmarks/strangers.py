"""Sends requests of untrusted clients to an executor, and measures their cost to another client: its longest wait
and memory.

`tests/e2e/process/test_strangers.py` checks that each request ends by itself, and does not change the other client's
tokens.

    .venv/bin/python benchmarks/strangers.py [--out FOLDER] [NAME ...]

An executor of weft-tiny on the CPU, with `untrusted_guides`, runs the requests one after another. Each comes from a
new client, while a neighbour, the other client, streams. `NAME` selects the requests whose names contain it.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.errors import WeftError
from weft.executor import (
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
    OutputConfig,
    Request,
    Response,
    SamplingConfig,
)
from weft_bench.report import Report

# -- the requests
#
# Their kinds: chains that a library follows on its stack, texts that cost more than their length, rewrites and
# compilation that grow faster than the text, grammars that cost more with each token, and extreme parameters. The
# inputs of `hostile.py` exceed a bound that is checked first; these look harmless to such bounds.

PROMPT = (0, 292, 28)
VOCAB_SIZE = 1536


@dataclass(frozen=True)
class Stranger:
    """A named request. `make` may itself raise a `WeftError`."""

    name: str
    make: Callable[[], Request]

    def __str__(self) -> str:
        return self.name


def sent(max_tokens: int = 24, prompt: Sequence[int] = PROMPT, **fields: Any) -> Request:
    sampling = fields.pop("sampling_config", SamplingConfig(temperature=1.0, seed=3))
    return Request(
        prompt, max_tokens, **{"allotted_time_ms": 30_000.0, "sampling_config": sampling, **fields}
    )


def guided(kind: GuideType, text: str, **fields: Any) -> Request:
    return sent(guided_decoding_params=GuidedDecodingParams(kind, text), **fields)


def schema(name: str, value: Callable[[], Any]) -> Stranger:
    def make() -> Request:
        made = value()
        return guided(GuideType.JSON_SCHEMA, made if isinstance(made, str) else json.dumps(made))

    return Stranger(f"schema: {name}", make)


def grammar(kind: GuideType, name: str, text: Callable[[], str], **fields: Any) -> Stranger:
    return Stranger(f"{kind.name.lower()}: {name}", lambda: guided(kind, text(), **fields))


def parameter(name: str, make: Callable[[], Request]) -> Stranger:
    return Stranger(f"parameter: {name}", make)


# -- chains


def reference_chain(length: int, step: Callable[[dict[str, Any]], Any], last: Any) -> dict[str, Any]:
    """Return definitions of which each refers to the next one once."""
    steps = {f"d{i}": step({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$defs": {**steps, f"d{length}": last}, "$ref": "#/$defs/d0"}


HALVES = {"type": "number", "multipleOf": 0.5}
STEPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "references": lambda reference: reference,
    "allOf": lambda reference: {"allOf": [reference]},
    "anyOf": lambda reference: {"anyOf": [reference]},
    "oneOf": lambda reference: {"oneOf": [reference, {"const": 1}]},
    "not": lambda reference: {"not": reference},
    "items": lambda reference: {"type": "array", "items": reference},
    "prefixItems": lambda reference: {"type": "array", "prefixItems": [reference], "items": False},
    "properties": lambda reference: {"type": "object", "properties": {"a": reference}, "required": ["a"]},
    "additionalProperties": lambda reference: {"type": "object", "additionalProperties": reference},
    "if": lambda reference: {"if": reference, "then": {"type": "integer"}, "else": {"type": "string"}},
    "siblings": lambda reference: {**reference, "minimum": 3},
}

CHAINS = [
    *(
        schema(f"a chain of {name}", lambda step=step: reference_chain(2500, step, HALVES))
        for name, step in STEPS.items()
    ),
    schema("a pointer of 20000 steps", lambda: {"$ref": "#" + "/properties/a" * 20_000}),
    schema("nested $defs as far as brackets go", lambda: '{"$defs":{"a":' * 31 + '{"type":"integer"}' + "}}" * 31),
    grammar(
        GuideType.LARK,
        "a chain of rules",
        lambda: "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(9000)) + 'a9000: "a"',
    ),
    grammar(
        GuideType.LARK,
        "a chain of terminals",
        lambda: "start: A0\n" + "".join(f"A{i}: A{i + 1}\n" for i in range(9000)) + 'A9000: "a"',
    ),
    grammar(
        GuideType.LARK,
        "a chain of terminals that each add a letter",
        lambda: "start: A0\n" + "".join(f'A{i}: "a" A{i + 1}\n' for i in range(6000)) + 'A6000: "a"',
    ),
    grammar(
        GuideType.LARK,
        "a chain of references in a schema within",
        lambda: "start: %json " + json.dumps(reference_chain(2500, lambda r: r, HALVES)),
    ),
    grammar(GuideType.LARK, "groups 30000 deep", lambda: "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    grammar(
        GuideType.EBNF_GRAMMAR,
        "a chain of rules",
        lambda: "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(11_000)) + 'a11000 ::= "a"',
    ),
    grammar(
        GuideType.EBNF_GRAMMAR,
        "a chain of rules that recurse",
        lambda: (
            "root ::= a0\n"
            + "".join(f'a{i} ::= a{i + 1} | "x" a{i} "y"\n' for i in range(4000))
            + 'a4000 ::= "a" root | "b"'
        ),
    ),
    grammar(GuideType.REGEX, "80000 groups in a row", lambda: "(a)" * 80_000),
    grammar(GuideType.REGEX, "a group in a group, 60 deep, each repeated", lambda: "(" * 60 + "a" + ")?" * 60),
    grammar(GuideType.REGEX, "30000 marks of repetition", lambda: "a" + "+" * 30_000),
    grammar(
        GuideType.STRUCTURAL_TAG,
        "sequences in sequences",
        lambda: (
            '{"type":"structural_tag","format":'
            + '{"type":"sequence","elements":[' * 20
            + '{"type":"any_text"}'
            + "]}" * 20
            + "}"
        ),
    ),
]  # fmt: skip

# -- texts that a careless check reads repeatedly

FLOODS = {
    "line breaks": "\n" * 200_000,
    "rules that open a bracket": "a[\n" * 60_000,
    "an open text of escapes": '"' + '\\"' * 100_000,
    "comments": "//\n" * 60_000,
    "hashes": "#" * 200_000,
    "blanks": " " * 200_000,
    "slashes": "/" * 200_000,
    "backslashes": "\\" * 200_000,
    "quotes": '"' * 200_000,
    "percent signs": "%" * 200_000,
    "carriage returns": "\r" * 200_000,
    "names": "a " * 100_000,
    "closing brackets": ")" * 200_000,
    "colons": "a:\n" * 60_000,
}
READ_AGAIN = [
    *(
        grammar(GuideType.LARK, name, lambda text=text: 'start: "a"\n' + text)
        for name, text in FLOODS.items()
        if name not in ("closing brackets",)
    ),
    *(
        grammar(GuideType.EBNF_GRAMMAR, name, lambda text=text: 'root ::= "a"\n' + text)
        for name, text in FLOODS.items()
        if name not in ("comments", "percent signs", "colons")
    ),
    *(
        grammar(GuideType.REGEX, name, lambda text=text: "a" + text)
        for name, text in FLOODS.items()
        if name in ("backslashes", "slashes", "blanks", "closing brackets", "line breaks")
    ),
    schema("a long name over many that say nothing",
           lambda: {"properties": {"k" * 30_000: {"anyOf": [{"not": {}}] * 9000}}}),
    schema("blanks", lambda: '{"type":' + " " * 200_000 + '"integer"}'),
    schema("a description of 200 KB", lambda: {"type": "integer", "description": "d" * 200_000}),
    schema("escapes", lambda: '{"const":"' + "\\u0041" * 40_000 + '"}'),
    schema("30000 required names", lambda: {"type": "object", "required": [f"r{i}" for i in range(30_000)]}),
    schema("15000 unknown keywords", lambda: {f"x{i}": i for i in range(15_000)}),
    schema("a name that comes 15000 times", lambda: '{"properties":{' + ",".join(['"a":{}'] * 15_000) + "}}"),
]  # fmt: skip

# -- guides that grow faster than their text


def doubling(step: Callable[[dict[str, Any], dict[str, Any]], Any], length: int = 40) -> dict[str, Any]:
    """Return definitions of which each refers to the next one twice."""
    steps = {f"d{i}": step(*[{"$ref": f"#/$defs/d{i + 1}"}] * 2) for i in range(length)}
    return {"$defs": {**steps, f"d{length}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def kinds(name: str, count: int) -> list[dict[str, Any]]:
    return [{"properties": {name: {"const": i}}, "required": [name]} for i in range(count)]


GROWTH = [
    schema("allOf of anyOfs", lambda: {"allOf": [{"anyOf": kinds(f"k{i}", 10)} for i in range(12)]}),
    schema("allOf of oneOfs", lambda: {"type": "object", "allOf": [{"oneOf": kinds(f"k{i}", 8)} for i in range(12)]}),
    schema("allOf that doubles", lambda: doubling(lambda a, b: {"allOf": [a, b]})),
    schema("anyOf that doubles", lambda: doubling(lambda a, b: {"anyOf": [a, {"type": "array", "items": b}]})),
    schema("oneOf that doubles", lambda: doubling(lambda a, b: {"oneOf": [a, {"type": "array", "items": b}]})),
    schema("siblings that double", lambda: doubling(lambda a, b: {**a, "allOf": [b], "minimum": 1})),
    schema("if that doubles", lambda: doubling(lambda a, b: {"if": {"minimum": 3}, "then": a, "else": b})),
    schema("not that doubles", lambda: doubling(lambda a, b: {"not": {"anyOf": [a, b]}})),
    schema("allOf of itself", lambda: {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}, "$ref": "#/$defs/a"}),
    schema("200 conditions", lambda: {
        "type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(200)},
        "allOf": [{"if": {"required": [f"k{i}"]}, "then": {"required": [f"k{i + 1}"]}} for i in range(199)]}),
    schema("200 dependent names", lambda: {
        "type": "object", "properties": {f"k{i}": {} for i in range(200)},
        "dependentRequired": {f"k{i}": [f"k{(i + 1) % 200}"] for i in range(200)}}),
    schema("oneOf of 2000", lambda: {"oneOf": [{"const": f"c{i}"} for i in range(2000)]}),
    schema("oneOf of 500 objects", lambda: {"oneOf": kinds("kind", 500)}),
    schema("enum times enum", lambda: {"allOf": [{"enum": list(range(i, i + 2000))} for i in range(2)]}),
    schema("900 patterns", lambda: {"patternProperties": {f"^[a-z0-9]{{1,{i % 90 + 9}}}{i}$": {} for i in range(900)}}),
    schema("a pattern that backtracks", lambda: {"type": "string", "pattern": "^(a+)+(b|c|a)*(aa|a)*$",
                                                 "enum": ["a" * 60 + "!", "aaa"]}),
    schema("unique items of an enum", lambda: {"type": "array", "uniqueItems": True,
                                               "items": {"enum": list(range(30))}}),
    schema("a far number", lambda: {"type": "number", "minimum": 1e300, "maximum": 1.7e308, "multipleOf": 1e-300}),
    schema("names that count", lambda: {"type": "object", "minProperties": 90,
                                        "properties": {f"p{i}": {} for i in range(99)}}),
    grammar(GuideType.LARK, "rules that double", lambda: (
        "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(40)) + 'r40: "a"')),
    grammar(GuideType.LARK, "terminals that double", lambda: (
        "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(40)) + 'R40: "a"')),
    grammar(GuideType.LARK, "repeats of repeats", lambda: 'start: (("a"{1,999}){1,999}){1,999}'),
    grammar(GuideType.LARK, "a terminal that counts", lambda: "start: /(a{1,999}b{1,999}){1,99}/"),
    grammar(GuideType.LARK, "a terminal without its like", lambda: "start: /[ab]*a[ab]{30}/"),
    grammar(GuideType.REGEX, "a choice that looks back", lambda: "[ab]*a[ab]{40}c"),
    grammar(GuideType.REGEX, "4000 words", lambda: "|".join(f"{i * 7919 % 10007}x{i}" for i in range(4000))),
]  # fmt: skip

# -- grammars that cost more with each token

AMBIGUOUS = 'root ::= "{}" s "}}"\ns ::= s s | [a-z ] | ""'
STARVING = [
    *(
        grammar(
            GuideType.EBNF_GRAMMAR,
            f"ambiguous after {length} letters",
            lambda length=length: AMBIGUOUS.format("x" * length),
            max_tokens=600,
            bad_words=["}"],
        )
        for length in (0, 40, 60, 500)
    ),
    grammar(GuideType.EBNF_GRAMMAR, "three ways to everything",
            lambda: 'root ::= s\ns ::= s s s | s s | [a-z ] | ""', max_tokens=600),
    grammar(GuideType.EBNF_GRAMMAR, "ambiguous after a free text",
            lambda: 'root ::= [^#]{0,400} "#" s\ns ::= s s | [^#] | ""', max_tokens=600),
    grammar(GuideType.LARK, "ambiguous", lambda: "start: s\ns: s s | /[a-z ]/ | ", max_tokens=600),
    grammar(GuideType.LARK, "palindromes", lambda: "start: s\ns: /[a-z]/ s /[a-z]/ | /[a-z]/ | ", max_tokens=600),
    grammar(GuideType.REGEX, "many counters", lambda: "(.{1,9}a){1,99}", max_tokens=600),
]  # fmt: skip

# -- parameters

PARAMETERS = [
    parameter("a bad word of 200 KB", lambda: sent(bad_words=["ab" * 100_000])),
    parameter("100000 bad words", lambda: sent(bad_words=[[i % 1000, i // 1000] for i in range(100_000)])),
    parameter("100000 stop words", lambda: sent(stop_words=[f"no{i}" for i in range(100_000)])),
    parameter("100000 stop lists", lambda: sent(stop_words=[[i % 1000, i // 1000] for i in range(100_000)])),
    parameter("a stop word of 5 MB", lambda: sent(stop_words=["ab" * 2_500_000])),
    parameter("5000 stop words with one beginning", lambda: sent(stop_words=["a" * 40 + str(i) for i in range(5000)])),
    parameter("10^9 sequences", lambda: sent(sampling_config=SamplingConfig(num_return_sequences=10**9))),
    parameter("5000 sequences", lambda: sent(sampling_config=SamplingConfig(num_return_sequences=5000))),
    parameter("10^9 beams", lambda: sent(sampling_config=SamplingConfig(beam_width=10**9))),
    parameter("a prompt of a million tokens", lambda: sent(prompt=[1] * 1_000_000)),
    parameter("10^12 tokens", lambda: sent(max_tokens=10**12)),
    parameter("a bias without data", lambda: sent(embedding_bias=torch.zeros(VOCAB_SIZE, device="meta"))),
    parameter("a sparse bias", lambda: sent(embedding_bias=torch.zeros(VOCAB_SIZE).to_sparse())),
    parameter("a bias that forbids all", lambda: sent(embedding_bias=torch.full((VOCAB_SIZE,), -math.inf))),
    parameter("a short bias", lambda: sent(embedding_bias=torch.zeros(5))),
    parameter("an end that is no token", lambda: sent(end_id=10**9)),
    parameter("a token that is none", lambda: sent(prompt=[10**18])),
    parameter("a negative token", lambda: sent(prompt=[-5])),
    parameter("a million given drafts", lambda: sent(
        external_draft_tokens_config=ExternalDraftTokensConfig([1] * 1_000_000))),
    parameter("a share of nothing", lambda: sent(sampling_config=SamplingConfig(top_p=1e-300))),
    parameter("no heat at all", lambda: sent(sampling_config=SamplingConfig(temperature=5e-324))),
    parameter("no time", lambda: sent(allotted_time_ms=1e-9)),
    parameter("an unknown processor", lambda: sent(logits_post_processor_name="n" * 100_000)),
    parameter("all logits of everything", lambda: sent(output_config=OutputConfig(
        return_context_logits=True, return_generation_logits=True, return_log_probs=True))),
    parameter("an unknown guide name", lambda: sent(
        guided_decoding_params=GuidedDecodingParams(GuideType.HANDLE, "x" * 100_000))),
]  # fmt: skip


# -- answers that must be whole at their limit

CLOSING = [
    grammar(
        kind, f"whole at the limit: {name}", text, sampling_config=SamplingConfig(seed=3, on_length="close")
    )
    for kind, name, text in [
        (GuideType.REGEX, "4000 words", lambda: "|".join(f"{i * 7919 % 10007}y{i}" for i in range(4000))),
        (GuideType.EBNF_GRAMMAR, "ambiguous", lambda: 'root ::= s "!"\ns ::= s s | [a-z ] | ""'),
        (GuideType.EBNF_GRAMMAR, "endless", lambda: 'root ::= "a" root'),
        (
            GuideType.JSON_SCHEMA,
            "900 bounded texts",
            lambda: json.dumps(
                {
                    "type": "object",
                    "properties": {f"q{i}": {"type": "string", "maxLength": 9} for i in range(900)},
                }
            ),
        ),
        (
            GuideType.JSON_SCHEMA,
            "an enum of 4000",
            lambda: json.dumps({"enum": [f"{i}z" for i in range(4000)]}),
        ),
    ]
]


def everything() -> Iterator[Stranger]:
    """Yield all requests. Their names are unique."""
    for group in (CHAINS, READ_AGAIN, GROWTH, STARVING, PARAMETERS, CLOSING):
        yield from group


# -- the neighbour


class Neighbour:
    """Streams requests of `tokens` tokens until `end`. `gaps` are the seconds between responses. `answers` are the
    distinct answers: there is only one unless a request disturbs it."""

    def __init__(self, executor: Executor, tokens: int = 100) -> None:
        self.gaps: list[float] = []
        self.answers: set[tuple[int | str, ...]] = set()
        self.num_answers = 0
        self._executor = executor
        self._tokens = tokens
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="neighbour")
        self._thread.start()

    def longest_gap(self) -> float:
        """Return the longest gap in seconds since the last call."""
        gaps, self.gaps = self.gaps, []
        return max(gaps, default=0.0)

    def end(self) -> None:
        """Stop after the current answer. Raises `AssertionError` if the answer does not arrive, or if the thread
        died."""
        assert self._thread.is_alive(), "the neighbour's requests ended"
        self._is_over = True
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "the neighbour waits for ever"

    def _run(self) -> None:
        while not self._is_over:
            request = Request(
                [0, 292, 28],
                self._tokens,
                streaming=True,
                end_id=-1,
                sampling_config=SamplingConfig(temperature=1.0, seed=7),
            )
            number = self._executor.enqueue_request(request)
            answer: list[int | str] = []
            is_final, last = False, time.perf_counter()
            while not is_final:
                for response in self._executor.await_responses(number):
                    now = time.perf_counter()
                    self.gaps.append(now - last)
                    last, is_final = now, ends(response)
                    answer += (
                        [response.error_msg] if response.has_error() else response.result.output_token_ids[0]
                    )
            self.answers.add(tuple(answer))
            self.num_answers += 1


def ends(response: Response) -> bool:
    """Whether a response is the last of its request."""
    return response.has_error() or response.result.is_final


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


# -- the measurement

SETTLE_S = 0.3
ALONE_S = 20.0


def made(stranger: Stranger) -> Request | str:
    """Make the request. If that fails, returns the error's text."""
    try:
        return stranger.make()
    except WeftError as error:
        return f"{type(error).__name__}: {error}"


def ended(executor: Executor, request: Request, client: int) -> str:
    """Run a request. Returns its finish reason or its error."""
    try:
        request.client_id = client
        number = executor.enqueue_request(request)
    except WeftError as error:
        return f"{type(error).__name__}: {error}"
    while True:
        for response in executor.await_responses(number):
            if ends(response):
                return response.error_msg if response.has_error() else response.result.finish_reasons[0].name


def measure(names: list[str]) -> Report:
    """Return a row for each request, and their total cost."""
    config = ExecutorConfig(
        guided_decoding_config=GuidedDecodingConfig(untrusted=True), max_batch_size=4, max_seq_len=1024
    )
    rows = []
    with Executor(None, config, device="cpu") as executor:
        warm = Request([0], 2, guided_decoding_params=GuidedDecodingParams(GuideType.REGEX, "ab"))
        executor.await_responses(executor.enqueue_request(warm))
        neighbour = Neighbour(executor)
        time.sleep(1.0)
        neighbour.longest_gap()
        time.sleep(ALONE_S)
        alone = neighbour.longest_gap()
        first = resident_mib()
        for client, stranger in enumerate(everything()):
            if names and not any(name in stranger.name for name in names):
                continue
            request, before = made(stranger), resident_mib()
            # resident_mib() collects garbage. Wait, so that this pause is not counted as a gap of the next request.
            time.sleep(SETTLE_S)
            neighbour.longest_gap()
            start = time.perf_counter()
            how = ended(executor, request, client) if isinstance(request, Request) else request
            took = time.perf_counter() - start
            time.sleep(SETTLE_S)
            gap = neighbour.longest_gap()
            row = {
                "request": stranger.name,
                "seconds": round(took, 3),
                "longest_gap_over_alone": round(gap / alone, 2),
                "mib": round(resident_mib() - before, 1),
                "ended": how[:120],
            }
            rows.append(row)
            print(
                f"{row['seconds']:7.2f} s  gap x {row['longest_gap_over_alone']:5.2f}  {row['mib']:+7.1f} MiB  "
                f"{row['request'][:58]:58s} {row['ended'][:60]!r}",
                flush=True,
            )
        neighbour.end()
        summary = {
            "alone_longest_gap_ms": round(alone * 1e3, 1),
            "longest_gap_over_alone": max(row["longest_gap_over_alone"] for row in rows),
            "mib": round(resident_mib() - first, 1),
            "neighbours_different_answers": len(neighbour.answers),
        }
    return Report("strangers", rows, summary)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    report = measure(arguments.names)
    print(report.summary)
    if arguments.out is not None:
        report.write(arguments.out)
