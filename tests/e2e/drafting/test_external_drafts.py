"""Text given with requests, and requests' own limits of drafts, change how fast tokens come and never which."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.engine.drafters import BEHIND_GIVEN
from support.engine.references import Checkpoint
from support.engine.requests import Told, make_request, run, settle, told
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.engine.sequence import Sequence
from weft.errors import InputError
from weft.runtime import cpu

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
# Guide, temperature and length of each request; prompt and seed are its number.
ROWS: list[tuple[Guide | None, float, int]] = [
    (None, 0.0, 24),
    (None, 1.0, 24),
    (Guide.json_schema(SCHEMA), 0.0, 40),
    (Guide.json_schema(SCHEMA), 1.0, 23),
    (Guide.regex(r"[a-z ]{60,}"), 1.0, 20),
]
GRAPHS = ["one", "split", "none"]
COMPOSITIONS = [
    *((name, "one") for name in BEHIND_GIVEN),
    *((name, "split") for name in ("given+eagle3", "given+forced+ngram")),
    ("given+forced+eagle3", "none"),
]


def make(tiny: Checkpoint, speculation: Speculation | None = None, **engine: Any) -> LLM:
    engine = {"max_batch": 3, "max_seq_len": 384} | engine
    return LLM(tiny.path, device="cpu", speculation=speculation, engine=EngineConfig(**engine))


def requests(
    llm: LLM, prompts: list[str], given: list[list[int]] | None = None, **fields: Any
) -> list[Sequence]:
    """One for each of ROWS."""
    texts = given or [[] for _ in ROWS]
    return [
        make_request(
            llm,
            prompts[i],
            SamplingParams(max_tokens=length, temperature=temperature, seed=i),
            guide,
            given=tuple(texts[i]),
            **fields,
        )
        for i, (guide, temperature, length) in enumerate(ROWS)
    ]


def answers(llm: LLM, many: list[Sequence]) -> list[list[int]]:
    run(llm, many)
    for request in many:
        assert request.output.error is None, request.output.error
    return [request.output.token_ids for request in many]


@pytest.fixture(scope="module")
def alone(tiny: Checkpoint, prompts: list[str]) -> list[list[int]]:
    """The tokens of ROWS without speculation."""
    with make(tiny) as llm:
        return answers(llm, requests(llm, prompts))


@pytest.fixture(scope="module")
def wrong(alone: list[list[int]]) -> list[list[list[int]]]:
    """Texts that are not the answers: of others, made up, edited here and there, cut short, gone on with."""
    rng = random.Random(5)
    edited = []
    for tokens in alone:
        text = list(tokens)
        for _ in range(3):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(3)] = [rng.randrange(3, 300) for _ in range(rng.randrange(3))]
        edited.append(text)
    return [
        [*alone[1:], alone[0]],
        [[rng.randrange(3, 300) for _ in range(30)] for _ in alone],
        edited,
        [tokens[3:] for tokens in alone],
        [[*tokens[:7], *range(20, 30)] for tokens in alone],
    ]


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("num_drafts", [1, 3, 8])
def test_an_answer_that_was_given_comes_as_fast_as_it_can(
    tiny: Checkpoint, prompts: list[str], alone: list[list[int]], graphs: str, num_drafts: int
) -> None:
    with make(tiny, Speculation.given(num_draft_tokens=num_drafts), graphs=graphs) as llm:
        many = requests(llm, prompts, alone)
        assert answers(llm, many) == alone
        for request, tokens in zip(many, alone, strict=True):
            stats = request.output.stats
            assert stats.iterations == -(-(len(tokens) - 1) // (num_drafts + 1))
            assert stats.accepted_drafts == sum(request.output.drafted) >= len(tokens) - 1 - stats.iterations
        proposals = llm.engine.grammar.proposals
        assert proposals is not None
        assert proposals.counters().tokens["given"] >= sum(r.output.stats.accepted_drafts for r in many)


@pytest.mark.parametrize(("drafter", "graphs"), COMPOSITIONS)
def test_whatever_is_given_the_tokens_are_the_same(
    tiny: Checkpoint,
    prompts: list[str],
    alone: list[list[int]],
    wrong: list[list[list[int]]],
    drafter: str,
    graphs: str,
) -> None:
    with make(tiny, BEHIND_GIVEN[drafter](3), graphs=graphs) as llm:
        plain = requests(llm, prompts)
        for texts in wrong:
            assert answers(llm, requests(llm, prompts, texts)) == alone
        assert answers(llm, plain) == alone
        right = requests(llm, prompts, alone)
        assert answers(llm, right) == alone
        assert iterations(right) == sum(-(-(len(tokens) - 1) // 4) for tokens in alone) < iterations(plain)


def iterations(many: list[Sequence]) -> int:
    return sum(request.output.stats.iterations for request in many)


def test_an_edited_text_drafts_behind_the_edit(
    tiny: Checkpoint, prompts: list[str], alone: list[list[int]]
) -> None:
    texts = [[*tokens[:4], 5, 6, *tokens[5:]] for tokens in alone]
    with make(tiny, Speculation.given(num_draft_tokens=3)) as llm:
        many = requests(llm, prompts, texts)
        assert answers(llm, many) == alone
        for request, tokens in zip(many, alone, strict=True):
            # Of the tokens behind the edit four come one by one, three of which are no drafts.
            assert request.output.stats.iterations <= -(-len(tokens) // 4) + 5


@pytest.mark.parametrize(
    "engine",
    [
        {"overlap": True},
        {"overlap": True, "graphs": "none", "max_num_tokens": 40},
        {"policy": "max_utilization", "num_pages": 60, "page_size": 4},
        {"policy": "max_utilization", "num_pages": 60, "page_size": 4, "graphs": "split"},
    ],
)
def test_overlapped_and_preempted(
    tiny: Checkpoint, prompts: list[str], alone: list[list[int]], engine: dict[str, Any]
) -> None:
    """A request that goes on after a pause goes on in its text."""
    with make(tiny, Speculation.given(num_draft_tokens=3), **engine) as llm:
        many = requests(llm, prompts, alone)
        paused = 0
        for request in many:
            llm.engine.submit(request)
        while not all(request.is_finished for request in many):
            paused += len(llm.engine.step().paused)
        assert [request.output.token_ids for request in many] == alone
        assert paused or "policy" not in engine
        for request, tokens in zip(many, alone, strict=True):
            assert request.output.stats.iterations <= -(-(len(tokens) - 1) // 4) + paused


class Turns:
    """How many tokens came to each request in each turn."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.largest: Counter[int] = Counter()

    def __call__(self, request: Sequence) -> None:
        count = len(request.output.token_ids)
        self.largest[request.id] = max(self.largest[request.id], count - self.seen.get(request.id, 0))
        self.seen[request.id] = count


@pytest.mark.parametrize(("drafter", "graphs"), COMPOSITIONS)
def test_a_requests_own_limit(
    tiny: Checkpoint, prompts: list[str], alone: list[list[int]], drafter: str, graphs: str
) -> None:
    """In one batch: drafts up to each one's limit, as many as there are for whoever has none."""
    limits = [0, 2, 1, None, 7]
    with make(tiny, BEHIND_GIVEN[drafter](4), graphs=graphs, max_batch=5) as llm:
        turns = Turns()
        many = requests(llm, prompts, alone, on_progress=turns)
        for request, limit in zip(many, limits, strict=True):
            given = () if limit == 0 else request.request.given
            request.request = replace(request.request, max_drafts=limit, given=given)
            llm.engine.submit(request)
        state = llm.engine.parts.state
        while not all(request.is_finished for request in many):
            llm.engine.step()
            for request, limit in zip(many, limits, strict=True):
                if request.is_active and limit is not None:
                    assert state.drafts[limit:, request.slot].eq(-1).all()
        assert [request.output.token_ids for request in many] == alone
        assert [turns.largest[request.id] for request in many] == [1, 3, 2, 5, 5]


def test_where_all_have_a_limit_no_more_is_verified(
    tiny: Checkpoint, prompts: list[str], alone: list[list[int]]
) -> None:
    with make(tiny, Speculation.given(num_draft_tokens=8)) as llm:
        many = requests(llm, prompts, alone, max_drafts=2)
        assert answers(llm, many) == alone
        assert [r.output.stats.iterations for r in many] == [-(-(len(tokens) - 1) // 3) for tokens in alone]


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_masks_behind_drafts_that_are_none_are_not_filled(
    tiny: Checkpoint, prompts: list[str], limit: int
) -> None:
    speculation = Speculation.eagle3(num_draft_tokens=4, guide_drafts=True)
    guide, sampling = Guide.regex(r"[a-z0-9 ]{400}"), SamplingParams(max_tokens=20)
    with make(tiny, speculation) as llm:
        state = llm.engine.grammar.state
        limited = make_request(llm, prompts[0], sampling, guide, max_drafts=limit)
        run(llm, [limited, make_request(llm, prompts[1], sampling)])
        fills = sum(state.counters(operation).fills for operation in ("fetch", "extend", "commit"))
        assert limited.output.error is None
        iterations = limited.output.stats.iterations + 1  # the first token's makes drafts, too
        # One more mask is that of the first token. It was filled before its iteration, not after another.
        assert iterations <= fills <= iterations * (limit + 1) + 1


@pytest.fixture
def schedules() -> Iterator[Callable[..., None]]:
    yield cpu.set_schedule
    cpu.synchronize()
    cpu.set_schedule("inline")


@pytest.mark.parametrize("drafter", ["given+ngram", "given+forced+eagle3"])
def test_random_schedules(
    tiny: Checkpoint,
    prompts: list[str],
    alone: list[list[int]],
    wrong: list[list[list[int]]],
    schedules: Callable[..., None],
    drafter: str,
) -> None:
    with make(tiny, BEHIND_GIVEN[drafter](3), overlap=True) as llm:
        inline: dict[int | None, Told] = {}
        for schedule, seed in [("inline", 0), *(("random", i) for i in range(4)), ("ahead", 0), ("ahead", 1)]:
            for texts, limit in ((alone, None), (wrong[2], 2)):
                settle(llm)
                schedules(schedule, seed)
                many = requests(llm, [prompt[-40:] for prompt in prompts], texts, max_drafts=limit)
                run(llm, many)
                assert told(many) == inline.setdefault(limit, told(many)), f"{schedule}, seed {seed}"
        settle(llm)


def test_what_can_not_be_is_refused(tiny: Checkpoint, prompts: list[str]) -> None:
    def error(llm: LLM, **fields: Any) -> str:
        request = make_request(llm, prompts[0], SamplingParams(max_tokens=4), **fields)
        llm.engine.submit(request)
        assert isinstance(request.output.error, InputError)
        assert not llm.engine.has_work
        return str(request.output.error)

    with make(tiny) as llm:
        assert "Speculation.given()" in error(llm, given=(5,))
        with pytest.raises(InputError, match="max_drafts is -1"):
            error(llm, max_drafts=-1)
    with make(tiny, Speculation.given(Speculation.ngram())) as llm:
        size = llm.engine.parts.model.config.vocab_size
        for token in (-1, size):
            assert f"token id {token}; ids of this model are 0 to {size - 1}" in error(llm, given=(5, token))


def test_compositions() -> None:
    assert Speculation.given().max_draft_tokens == 8
    assert Speculation.given(Speculation.none()) == Speculation.given()
    chosen = Speculation.given(Speculation.forced(Speculation.mtp("there", num_draft_tokens={1: 4})))
    assert (chosen.name, chosen.num_draft_tokens, chosen.path) == ("given+forced+mtp", {1: 4}, "there")
    with pytest.raises(InputError, match="given twice"):
        Speculation.given(Speculation.ngram(), num_draft_tokens=3)
    with pytest.raises(InputError, match="given text itself"):
        Speculation.given(Speculation.given())
    with pytest.raises(InputError, match="given continues with 'ngram'"):
        Speculation.given("ngram")  # type: ignore[arg-type]


@pytest.mark.parametrize("speculation", [Speculation.forced(Speculation.given())])
def test_orders_that_make_no_sense_are_refused(tiny: Checkpoint, speculation: Speculation) -> None:
    with pytest.raises(
        InputError, match="given can't continue after forced; the host proposes given text first"
    ):
        make(tiny, speculation)
