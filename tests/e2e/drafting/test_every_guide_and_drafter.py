"""Every kind of guide with every drafter, all kinds in one batch: the tokens are those of decoding without speculation,
without graphs, one request at a time. Drafters, draft lengths, batch sizes, graphs, grammar libraries, overlap, a lack
of pages, greedy and seeded rows: every two of them meet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.guide_rows import END, ROWS, VOCABULARY, answers, rows_of
from support.engine.references import Checkpoint
from support.engine.requests import settle, told
from support.products import Run, covering, runs_as_cases
from weft import LLM, EngineConfig, Speculation
from weft.grammar.guide import GuideKind
from weft.runtime import cpu

BACKENDS = ["auto", "llguidance"]
LOADS: dict[str, dict[str, Any]] = {
    "pages for all": {},
    "overlap": {"overlap": True},
    "few pages": {"policy": "max_utilization", "page_size": 4, "num_pages": 70, "max_seq_len": 256},
}
RUNS = covering(
    {
        "drafter": [*DRAFTERS, "none"],
        "num_drafts": [1, 3, 8],
        "batch": [1, 3, 8],
        "graphs": ["one", "split", "none"],
        "backend": BACKENDS,
        "load": list(LOADS),
        "drawn": [0, 1],  # the rows with an even or an odd number are drawn, the others greedy
    },
    can_be=lambda run: (run["graphs"], run["load"]) != ("split", "overlap"),
)
Expected = dict[tuple[str, float], list[int]]


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str]) -> dict[str, Expected]:
    """The tokens of every row, greedy and drawn, for each grammar library."""
    assert tiny.tokenizer.eos_token_id == END and tiny.model.config.vocab_size >= VOCABULARY
    found = {}
    for backend in BACKENDS:
        rows = [(row, temperature) for row in rows_of(backend) for temperature in (0.0, 1.0)]
        engine = EngineConfig(max_batch=1, max_seq_len=512, graphs="none", grammar=backend)
        with LLM(tiny.path, device="cpu", engine=engine) as llm:
            outputs = answers(llm, prompts, rows)
        found[backend] = {(row.name, t): o.token_ids for (row, t), o in zip(rows, outputs, strict=True)}
    return found


def runs_in_parts() -> list[Any]:
    """`make test` takes every other row of its runs, and CI all of them."""
    quick = [case for case in runs_as_cases(RUNS) if not case.marks]
    parts = [
        pytest.param(case.values[0], number % 2, 2, id=f"{case.id}-{number % 2} of 2")
        for number, case in enumerate(quick)
    ]
    whole = [
        pytest.param(case.values[0], 0, 1, id=case.id, marks=pytest.mark.slow) for case in runs_as_cases(RUNS)
    ]
    return parts + whole


@pytest.mark.parametrize(("run", "part", "parts"), runs_in_parts())
def test_tokens_are_those_without_speculation(
    tiny: Checkpoint,
    prompts: list[str],
    expected: dict[str, Expected],
    random_drafters: Path,
    run: Run,
    part: int,
    parts: int,
) -> None:
    drafter, backend = run["drafter"], run["backend"]
    speculation = (
        Speculation.none() if drafter == "none" else DRAFTERS[drafter](random_drafters, run["num_drafts"])
    )
    settings = {"max_seq_len": 512, **LOADS[run["load"]]}
    engine = EngineConfig(max_batch=run["batch"], graphs=run["graphs"], grammar=backend, **settings)
    rows = [(row, float(number % 2 == run["drawn"])) for number, row in enumerate(rows_of(backend))]
    rows = [row for number, row in enumerate(rows) if number // 2 % parts == part]  # drawn and greedy ones
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        outputs = answers(llm, prompts, rows)
    wrong = {
        (row.name, temperature): (output.token_ids, expected[backend][row.name, temperature])
        for (row, temperature), output in zip(rows, outputs, strict=True)
        if output.token_ids != expected[backend][row.name, temperature]
    }
    assert wrong == {}
    if drafter not in ("none", "ngram", "ngram-unguided") and "random" not in drafter:
        assert sum(output.stats.accepted_drafts for output in outputs) > 0


@pytest.fixture
def schedules() -> Iterator[Callable[..., None]]:
    yield cpu.set_schedule
    cpu.synchronize()
    cpu.set_schedule("inline")


@pytest.mark.parametrize(("drafter", "seed"), [("eagle3", 1), ("forced+ngram", 2)])
def test_random_schedules_give_the_same_answers(
    tiny: Checkpoint,
    prompts: list[str],
    expected: dict[str, Expected],
    random_drafters: Path,
    schedules: Callable[..., None],
    drafter: str,
    seed: int,
) -> None:
    engine = EngineConfig(max_batch=8, max_seq_len=512)
    rows = [(row, float(number % 2)) for number, row in enumerate(ROWS)]
    with LLM(
        tiny.path, device="cpu", speculation=DRAFTERS[drafter](random_drafters, 3), engine=engine
    ) as llm:
        settle(llm)
        inline = told(answers(llm, prompts, rows))
        assert [tokens for tokens, _ in inline] == [
            expected["auto"][row.name, temperature] for row, temperature in rows
        ]
        for schedule, number in (("random", seed), ("ahead", seed % 2)):
            settle(llm)
            schedules(schedule, number)
            assert told(answers(llm, prompts, rows)) == inline, schedule
        settle(llm)


def test_every_kind_of_guide_is_tried() -> None:
    """But for XGrammar's own objects, which are what it makes of texts, and tools in a model's own style, which become
    structural tags."""
    tried = {guide.kind for row in ROWS if (guide := row.make()) is not None}
    assert tried == set(get_args(GuideKind)) - {"grammar", "compiled", "tools"}


def test_what_is_compared_is_what_the_guides_mean(tiny: Checkpoint, expected: dict[str, Expected]) -> None:
    texts = {
        name: tiny.tokenizer.decode(tokens, skip_special_tokens=True)
        for (name, temperature), tokens in expected["auto"].items()
        if temperature == 0
    }
    for name, pattern in {
        "Lark": "<[a-z]{1,6}(,[a-z]{1,6})*,?>?",
        "all of": "[1-9][0-9]{1,3}",
        "regex with classes": r"(?i:(north|south)) [A-Za-z]{2,5}",
        "after, Lark": r".*!\(*[0-9]+\)*",
        "recogniser": r"[()\[\]{}]+",
        "recogniser, collapsing": r"[()\[\]{}]+",
        "plug-in": "[0-9]{9}",
        "plug-in, recogniser": r"[()\[\]{}]+",
        "after, plug-in": ".*:[0-9]{5}",
        "wasm": "[0-9]{6}",
        "wasm, forced": r"Nr\. [0-9]{4}",
        "wasm, spliced": "([0-57]|[86]00|9)+",
        "wasm, replaced": "([013579]|00)+",
        "after, wasm": ".*e.*[0-9]{4}",
    }.items():
        assert re.fullmatch(pattern, texts[name], re.DOTALL), (name, texts[name])
    tokens = expected["auto"]["Python, forward", 0.0]
    assert tokens[-1] == END and len(tokens) == 11


def test_the_two_libraries_give_the_same_where_nothing_is_left_open(expected: dict[str, Expected]) -> None:
    """Only schemas leave open how much white space there is, in an order of their own."""
    free = ("json", "json_schema", "after")
    for name, temperature in expected["llguidance"]:
        if not name.startswith(free):
            assert expected["llguidance"][name, temperature] == expected["auto"][name, temperature], name
