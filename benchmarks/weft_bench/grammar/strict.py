"""Tests strict guides of random schemas: their finished answers are checked by `json` and `jsonschema`.

Each library, and auto, compiles each schema: for answers that may be cut and for those that must be complete, with
objects randomly open or closed. Answers are random walks through the masks, values that the guide accepts, and, for
some schemas, weft-tiny's answers at a temperature of 1 or more. An answer that is not JSON, violates its schema, or
has more whitespace than its guide allows is a failure. It is reported with a smaller schema that shows the same
failure, if there is one.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.progress import Progress

from weft.config import EngineConfig
from weft.core import SamplingParams
from weft.errors import GuideError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Matcher
from weft.grammar.base import Opening
from weft.grammar.kinds.closing import closing_matcher
from weft.llm import LLM
from weft_bench.grammar.exact_verdict import INVALID, NO_JSON, UNJUDGED, VALID, verdict
from weft_bench.grammar.random_answers import Walker, vocabulary
from weft_bench.grammar.random_schemas import document
from weft_bench.grammar.shrink import shrunk
from weft_bench.grammar.validity import prompt_of
from weft_bench.report import Report

WAYS = [
    ("xgrammar", "cut"),
    ("xgrammar", "close"),
    ("llguidance", "cut"),
    ("auto", "cut"),
    ("auto", "close"),
]
ROOMS = (30, 60, 120)
NUM_WALKS, NUM_VALUES = 2, 4
MODEL_EVERY = 8
"""weft-tiny answers one of this many schemas."""
BATCH, MODEL_TOKENS = 16, 96
UNTIDY = "untidy"
BAD = (INVALID, NO_JSON, UNTIDY)
IN_TIDY = re.compile(r'"(?:[^"\\]|\\.)*"|[,:] ?|[^\s",:]+')
"""The parts of a tidy JSON text."""


@dataclass(frozen=True)
class Case:
    """A schema, and the settings of its guide."""

    seed: int
    schema: Any
    library: str
    on_length: str
    options: dict[str, Any]

    def guide(self) -> Guide:
        """Return the strict guide. Raises `GuideError`."""
        return Guide.json_schema(self.schema, **self.options)

    def verdict(self, schema: Any, text: str) -> str:
        """The verdict on an answer of this case's guide, under a schema."""
        found = verdict(schema, text)
        is_tidy = "max_whitespace" in self.options or not IN_TIDY.sub("", text)
        return UNTIDY if found == VALID and not is_tidy else found


@dataclass
class Tried:
    """The counts for one kind of answers."""

    compiled: int = 0
    refused: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)


class Trial:
    """Compiles cases and judges their answers. `failures` are the invalid answers."""

    def __init__(self, of: type[Case] = Case) -> None:
        self._of = of
        self._vocabulary = vocabulary()
        self._walker = Walker(self._vocabulary)
        self._compilers: dict[str, GuideCompiler] = {}
        self._told: set[int | str] = set()
        self.tried: dict[tuple[str, str, str], Tried] = {}
        self.failures: list[dict[str, Any]] = []

    def answers(self) -> int:
        """Return the number of finished answers."""
        return sum(tried.verdicts[word] for tried in self.tried.values() for word in (VALID, *BAD, UNJUDGED))

    def of_kind(self, case: Case, source: str) -> Tried:
        """Return the counts of a case's answers from `source`."""
        return self.tried.setdefault((case.library, case.on_length, source), Tried())

    def run(self, case: Case) -> bool:
        """Make random answers to a case. Returns whether the case compiled."""
        walks, values = self.of_kind(case, "walk"), self.of_kind(case, "value")
        rng = random.Random(f"{case.seed} {case.library} {case.on_length}")
        try:
            compiled = self.compiled(case)
            matchers = [_matcher(compiled, case.on_length, rng.choice(ROOMS)) for _ in range(NUM_WALKS + 1)]
        except GuideError:
            walks.refused += 1
            values.refused += 1
            return False
        walks.compiled += 1
        values.compiled += 1
        for matcher in matchers[1:]:
            try:
                text = self._walker.walk(rng, matcher)
            except AssertionError as error:
                self.failures.append(_told(case, "walk", "mask", "", str(error)))
                continue
            if text is None:
                walks.verdicts["unfinished"] += 1
            else:
                self.judge(case, "walk", text)
        for text in self._walker.read(rng, matchers[0], NUM_VALUES):
            self.judge(case, "value", text)
        return True

    def judge(self, case: Case, source: str, text: str) -> None:
        """Judge a finished answer, and count it."""
        found = case.verdict(case.schema, text)
        self.of_kind(case, source).verdicts[found] += 1
        if found in BAD and self._is_new(case.seed):
            smaller = shrunk(case.schema, lambda schema: self._shows(case, schema, text))
            if self._is_new(case.library + json.dumps(smaller)):
                self.failures.append(_told(case, source, found, text, f"{text!r} is {found}", smaller))

    def _is_new(self, what: int | str) -> bool:
        """Whether this is the first failure of its schema."""
        is_new = what not in self._told
        self._told.add(what)
        return is_new

    def _shows(self, case: Case, schema: Any, text: str) -> bool:
        """Whether a text is also an answer under another schema, and violates that schema."""
        try:
            compiled = self.compiled(self._of(case.seed, schema, case.library, case.on_length, case.options))
            takes = self._walker.takes(compiled.matcher(), text)
        except GuideError:
            return False
        return takes and case.verdict(schema, text) in BAD

    def compiled(self, case: Case) -> CompiledGuide:
        """Compile a case's guide for the vocabulary of the walks. Raises `GuideError`."""
        if case.library not in self._compilers:
            self._compilers[case.library] = GuideCompiler(self._vocabulary, backend=case.library)
        guide = case.guide()
        if case.on_length == "close" and case.library == "auto":
            guide = Guide(**{**vars(guide), "closes": True})
        return self._compilers[case.library].compile_part(guide)


def _matcher(compiled: CompiledGuide, on_length: str, room: int) -> Matcher:
    """Make a matcher. Raises `GuideError`."""
    return compiled.matcher() if on_length == "cut" else closing_matcher(compiled, Opening(room=room))


def _told(case: Case, source: str, found: str, text: str, error: str, smaller: Any = None) -> dict[str, Any]:
    return {
        "seed": case.seed,
        "library": case.library,
        "on_length": case.on_length,
        "source": source,
        "verdict": found,
        "answer": text,
        "schema": json.dumps(case.schema),
        "smaller": json.dumps(smaller),
        **case.options,
        "error": error,
    }


def cases(seed: int) -> list[Case]:
    """Make a random schema, and return it in each of the `WAYS`."""
    rng = random.Random(seed)
    schema = document(rng)
    options: dict[str, Any] = {"open_objects": rng.random() < 0.5}
    if rng.random() < 0.2:
        options["separators"] = rng.choice([(", ", ": "), (",", ":")])
    if rng.random() < 0.2:
        options["any_order"] = True
    if rng.random() < 0.2:
        options["max_whitespace"] = rng.choice([1, 8, None])
    return [Case(seed, schema, library, on_length, options) for library, on_length in WAYS]


def run(*, seed: int = 0, answers: int = 10_000, schemas: int = 1, model: bool = True) -> Report:
    """Try random schemas, starting with `seed`, until there are `answers` finished answers and `schemas` compiled
    schemas."""
    trial = Trial()
    num_compiled = num_seen = 0
    asked: list[Case] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("answers", total=answers)
        while trial.answers() < answers or num_compiled < schemas:
            found = cases(seed + num_seen)
            num_seen += 1
            compiled = [trial.run(case) for case in found]
            num_compiled += any(compiled)
            if any(compiled[3:]) and num_seen % MODEL_EVERY == 0:
                asked.append(found[3] if compiled[3] else found[4])
            progress.update(task, completed=trial.answers())
    if model:
        _ask_model(trial, asked)
    rows = list(_rows(trial))
    summary = {
        "seed": seed,
        "schemas": num_seen,
        "compiled": num_compiled,
        "answers": trial.answers(),
        **{
            word.replace(" ", "_"): sum(row[word.replace(" ", "_")] for row in rows)
            for word in (*BAD, UNJUDGED)
        },
    }
    return Report("strict-schemas", rows, summary, trial.failures)


def _ask_model(trial: Trial, asked: list[Case]) -> None:
    """Let weft-tiny answer the cases, and judge the answers."""
    with LLM(engine=EngineConfig(max_batch=BATCH)) as llm:
        for start in range(0, len(asked), BATCH):
            part = asked[start : start + BATCH]
            outputs = llm.generate(
                [prompt_of(case.schema) for case in part],
                guide=[case.guide() for case in part],
                sampling=[
                    SamplingParams(
                        max_tokens=MODEL_TOKENS,
                        temperature=(1.0, 2.0, 5.0)[i % 3],
                        seed=case.seed,
                        on_length="close" if case.on_length == "close" else "cut",
                    )
                    for i, case in enumerate(part)
                ],
            )
            for case, output in zip(part, outputs, strict=True):
                tried = trial.of_kind(case, "model")
                if isinstance(output.error, GuideError):
                    tried.refused += 1
                    continue
                tried.compiled += 1
                if output.error is not None:
                    trial.failures.append(_told(case, "model", "error", output.text, str(output.error)))
                elif output.finish_reason == "stop":
                    trial.judge(case, "model", output.text)
                else:
                    tried.verdicts["unfinished"] += 1


def _rows(trial: Trial) -> Iterator[dict[str, Any]]:
    for (library, on_length, source), tried in sorted(trial.tried.items()):
        yield {
            "library": library,
            "on_length": on_length,
            "source": source,
            "compiled": tried.compiled,
            "refused": tried.refused,
            "valid": tried.verdicts[VALID],
            "invalid": tried.verdicts[INVALID],
            "no_JSON": tried.verdicts[NO_JSON],
            "untidy": tried.verdicts[UNTIDY],
            "unjudged": tried.verdicts[UNJUDGED],
            "unfinished": tried.verdicts["unfinished"],
        }
