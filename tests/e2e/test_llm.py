"""LLM, as a user has it: answers, streams, threads, guides, lists."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.grammar.guides import NOT_UNIQUE, UNIQUE_ITEMS
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation, WeftError
from weft.errors import GuideError, InputError
from weft.tiny.records import example

SAMPLING = SamplingParams(max_tokens=160)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", speculation=Speculation.eagle3(), engine=EngineConfig(max_batch=8)) as llm:
        yield llm


def test_the_model_inside_the_package_has_a_name(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM("weft-tiny", device="cpu") as named:
        assert named.model_path == llm.model_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weft-tiny").mkdir()  # a directory of that name is what the user means
    with pytest.raises(WeftError, match=r"config\.json: there is no such file"):
        LLM("weft-tiny", device="cpu")
    with pytest.raises(WeftError, match="'weft-tiny'"):
        LLM("weft-tinier", device="cpu")


def test_streaming_gives_the_same_text(llm: LLM) -> None:
    record = example(random.Random(1), "heldout")
    guide = Guide.json_schema(record.schema)
    whole = llm.generate(record.prompt, guide=guide, sampling=SAMPLING)
    pieces = list(llm.stream(record.prompt, guide=guide, sampling=SAMPLING))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [t for piece in pieces for t in piece.token_ids] == whole.token_ids
    assert pieces[-1].output is not None
    assert pieces[-1].output.finish_reason == whole.finish_reason == "stop"
    assert len(pieces) < len(whole.token_ids)


def test_streams_interleave_and_close(llm: LLM) -> None:
    records = [example(random.Random(i), "heldout") for i in (3, 4)]
    expected = [llm.generate(r.prompt, sampling=SAMPLING).text for r in records]
    live = {i: llm.stream(r.prompt, sampling=SAMPLING) for i, r in enumerate(records)}
    texts = ["", ""]
    while live:
        for i, pieces in list(live.items()):
            piece = next(pieces, None)
            if piece is None:
                del live[i]
            else:
                texts[i] += piece.text
    assert texts == expected
    cancelled = llm.stream(records[0].prompt, sampling=SAMPLING)
    next(cancelled)
    cancelled.close()
    until = time.monotonic() + 60
    while llm.engine.has_work:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert llm.generate(records[1].prompt, sampling=SAMPLING).text == expected[1]


def test_threads_share_a_batch(llm: LLM) -> None:
    """Requests of many threads run together, and have the tokens that they have alone."""
    records = [example(random.Random(i), "heldout") for i in range(8)]
    alone = [llm.generate(r.prompt, sampling=SAMPLING).token_ids for r in records]
    barrier, told, widest = threading.Barrier(8), [[0]] * 8, 0
    step = llm.engine.step

    def ask(i: int) -> None:
        barrier.wait()
        told[i] = llm.generate(records[i].prompt, sampling=SAMPLING).token_ids

    def counting(**terms: Any) -> Any:
        nonlocal widest
        record = step(**terms)
        widest = max(widest, len(record.generation))
        return record

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm.engine, "step", counting)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert told == alone
    assert widest > 4


def test_an_interrupt_cancels(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the waiting thread is interrupted by: nothing goes on behind its back."""
    monkeypatch.setattr("weft.llm.progress", Interrupting)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["Text: a", "Text: b"], sampling=[SamplingParams(max_tokens=n) for n in (1, 400)])
    monkeypatch.undo()
    until = time.monotonic() + 60
    while llm.engine.has_work:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert llm.generate("Text: a", sampling=SamplingParams(max_tokens=3)).finish_reason == "length"


class Interrupting:
    """A progress bar whose first advance is interrupted."""

    def __init__(self, total: int, enabled: bool) -> None: ...

    def __enter__(self) -> Callable[[int], object]:
        def advance(count: int) -> None:
            raise KeyboardInterrupt

        return advance

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guided_answers_are_valid(llm: LLM, temperature: float) -> None:
    """By an independent validator, on shapes that weft-tiny never saw."""
    rng = random.Random(11)
    records = [example(rng, "unseen" if i % 2 else "heldout") for i in range(40)]
    outputs = llm.generate(
        [r.prompt for r in records],
        guide=[Guide.json_schema(r.schema) for r in records],
        sampling=[SamplingParams(max_tokens=300, temperature=temperature, seed=i) for i in range(40)],
    )
    finished = 0
    for record, output in zip(records, outputs, strict=True):
        assert output.error is None
        if output.finish_reason == "stop":
            jsonschema.validate(json.loads(output.text), record.schema)
            assert output.stats.guided_valid is True
            finished += 1
    assert finished >= 36


def test_drafts_are_accepted(llm: LLM) -> None:
    rng = random.Random(8)
    records = [example(rng, "heldout") for _ in range(24)]
    outputs = llm.generate(
        [r.prompt for r in records], guide=[Guide.json_schema(r.schema) for r in records], sampling=SAMPLING
    )
    drafted = sum(o.stats.drafted_iterations for o in outputs)
    tokens = sum(o.stats.drafted_tokens for o in outputs)
    assert tokens / drafted > 2.5


def test_other_guides(llm: LLM) -> None:
    assert llm.generate("Text: x", guide=Guide.choice(["alpha", "beta"])).text in ("alpha", "beta")
    assert re.fullmatch(r"\d{3}-[a-f]{2}", llm.generate("Text: x", guide=Guide.regex(r"\d{3}-[a-f]{2}")).text)
    assert (
        llm.generate("Text: x", guide=Guide.ebnf('root ::= "<" [a-c]* ">"'), sampling=SAMPLING).text[0] == "<"
    )


def test_chat_is_the_trained_prompt(llm: LLM) -> None:
    record = example(random.Random(2), "heldout")
    output = llm.chat([{"role": "user", "content": record.prompt}], sampling=SAMPLING)
    assert json.loads(output.text).keys() == record.answer.keys()


def test_an_output_has_its_prompt_and_its_place(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=2, n=2, temperature=1.0)
    text, tokens = llm.generate(["Text: Ada", [5, 6]], sampling)
    assert [(o.prompt, o.index) for o in text.outputs] == [("Text: Ada", 0), ("Text: Ada", 1)]
    assert (tokens.prompt, tokens.prompt_token_ids) == (None, [5, 6])
    messages = [{"role": "user", "content": "Hello"}]
    *_, last = llm.chat_stream(messages, SamplingParams(max_tokens=2))
    assert last.output is not None
    assert llm.chat(messages, SamplingParams(max_tokens=2)).prompt == last.output.prompt == "<s>Hello\n"
    with pytest.raises(InputError, match="give the dict's 'prompt'"):
        llm.generate([{"prompt": "Text"}])  # type: ignore[list-item]


def test_lists(llm: LLM) -> None:
    assert llm.generate([]) == []
    prompts = [example(random.Random(i), "heldout").prompt for i in range(11)]
    outputs = llm.generate(prompts, sampling=SAMPLING)
    assert [o.token_ids for o in outputs] == [llm.generate(p, sampling=SAMPLING).token_ids for p in prompts]


def test_without_strict_an_answer_tells_what_was_left_out_and_whether_it_is_valid(llm: LLM) -> None:
    with pytest.raises(GuideError, match=NOT_UNIQUE):
        llm.generate("Text: x", guide=Guide.json_schema(UNIQUE_ITEMS))
    guide = Guide.json_schema(UNIQUE_ITEMS, strict=False)
    output = llm.generate("Text: x", guide=guide)
    assert output.finish_reason == "stop" and output.guide_notes == (NOT_UNIQUE,)
    assert len(json.loads(output.text)) == 3 and output.stats.guided_valid is False
    two = Guide.json_schema(
        {**UNIQUE_ITEMS, "minItems": 1, "maxItems": 2, "items": {"enum": [1]}}, strict=False
    )
    samples = llm.generate(["Text: x"] * 8, guide=two, sampling=SamplingParams(temperature=1.0, seed=None))
    for sample in samples:
        assert sample.stats.guided_valid is (json.loads(sample.text) == [1])
    (*_, last) = llm.stream("Text: x", guide=Guide.after("x", guide, max_free_tokens=1))
    assert last.output is not None and last.output.guide_notes == (NOT_UNIQUE,)
    assert last.output.stats.guided_valid is False
    assert llm.generate("Text: x", guide=Guide.regex("[0-9]{3}")).guide_notes == ()


def test_accepted_drafts_are_those_in_the_answer(llm: LLM) -> None:
    record = example(random.Random(6), "heldout")
    output = llm.generate(record.prompt, sampling=SAMPLING)
    assert output.stats.accepted_drafts == sum(output.drafted) > 0


def test_long_lists_are_fed_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the engine nor the compiler has more than a few batches of it at a time; all is answered, in its order;
    what is wrong anywhere is said before anything begins."""
    with LLM(device="cpu", engine=EngineConfig(max_batch=8, max_seq_len=64)) as llm:
        assert llm.client.compiler is not None
        submit, compile_guide = llm.client.submit, llm.client.compiler.submit
        begun: list[Any] = []
        most = guides = 0

        def counted(requests: Any, listener: Any) -> Any:
            nonlocal most
            handles = submit(requests, listener)
            begun.extend(handles)
            most = max(most, sum(not handle.is_over for handle in begun))
            return handles

        def compiled(guide: Guide, client: Any) -> Any:
            nonlocal guides
            guides += 1
            return compile_guide(guide, client)

        monkeypatch.setattr(llm.client, "submit", counted)
        monkeypatch.setattr(llm.client.compiler, "submit", compiled)
        prompts = [[5 + i % 90, 6] for i in range(600)]
        one = SamplingParams(max_tokens=1)
        outputs = llm.generate(prompts, sampling=one)
        assert [output.prompt_token_ids for output in outputs] == prompts
        assert all(len(output.token_ids) == 1 for output in outputs)
        assert {p: o.token_ids for p, o in zip(map(tuple, prompts), outputs, strict=True)} == {
            tuple(p): o.token_ids
            for p, o in zip(prompts[:90], llm.generate(prompts[:90], sampling=one), strict=True)
        }
        assert most <= 64
        begun.clear()
        with pytest.raises(InputError, match="token id"):
            llm.generate([*prompts, [10**6]], sampling=one)
        assert not begun and not guides
        refused = [Guide.regex("[") if i % 2 else Guide.regex(f"a{{{i}}}") for i in range(200)]
        answers = llm.generate(prompts[:200], guide=refused, sampling=one)
        assert guides == 200 and most <= 64
        assert [output.error is not None for output in answers] == [bool(i % 2) for i in range(200)]
