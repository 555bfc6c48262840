"""What an LLM can be asked beside guide and sampling: priority, time, several sequences, beams, given text, processors,
tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from weft import LLM, EngineConfig, Guide, Piece, RequestError, SamplingParams, Speculation
from weft.client.options import RequestOptions
from weft.errors import InputError
from weft.executor import Executor, ExecutorConfig, OutputConfig, Request, SamplingConfig

PROMPT = "Text: Ada is a painter. Age 31.\nSchema: "
GREEDY = SamplingParams(max_tokens=12)
DRAWN = SamplingParams(max_tokens=12, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    config = EngineConfig(
        max_batch=4,
        max_seq_len=256,
        max_beam_width=4,
        gather_generation_logits=True,
        additional_outputs=(("hidden_states.0", True), ("hidden_states.1", False)),
    )
    with LLM(device="cpu", engine=config) as llm:
        yield llm


@pytest.fixture(scope="module")
def drafting() -> Iterator[LLM]:
    with LLM(device="cpu", speculation=Speculation.given(), engine=EngineConfig(max_seq_len=256)) as llm:
        yield llm


def drawn(**more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 12, "temperature": 1.0, "seed": 3, **more})


# -- several sequences


def test_each_sequence_has_a_seed_of_its_own(llm: LLM) -> None:
    """Sequence i is what seed + i gives alone; the first is the output itself."""
    hot = 4.0  # weft-tiny is too sure of what it answers here to say anything else at 1
    alone = [llm.generate(PROMPT, sampling=drawn(seed=seed, temperature=hot)) for seed in (3, 4, 5)]
    output = llm.generate(PROMPT, sampling=drawn(n=3, temperature=hot))
    assert output.outputs[0] is output
    assert [one.text for one in output.outputs] == [one.text for one in alone]
    assert [one.token_ids for one in output.outputs] == [one.token_ids for one in alone]
    assert len({one.text for one in alone}) > 1


@pytest.mark.parametrize("n", [None, 1])
def test_one_sequence_is_the_output(llm: LLM, n: int | None) -> None:
    output = llm.generate(PROMPT, sampling=drawn(n=n))
    assert output.outputs == [output] and output.others == []
    assert output.token_ids == llm.generate(PROMPT, sampling=DRAWN).token_ids


def test_prompts_of_a_list_have_as_many_as_each_asks_for(llm: LLM) -> None:
    outputs = llm.generate([PROMPT] * 3, sampling=[drawn(n=2), None, drawn(n=6)])
    assert [len(output.outputs) for output in outputs] == [2, 1, 6]
    assert [one.token_ids for one in outputs[0].outputs] == [one.token_ids for one in outputs[2].outputs[:2]]


def test_a_stream_says_which_sequence_a_piece_is_of(llm: LLM) -> None:
    pieces: list[Piece] = list(llm.stream(PROMPT, sampling=drawn(n=3)))
    whole = pieces[-1].output
    assert whole is not None and all(piece.output is None for piece in pieces[:-1])
    for index, one in enumerate(whole.outputs):
        own = [piece for piece in pieces if piece.index == index]
        assert "".join(piece.text for piece in own) == one.text
        assert [token for piece in own for token in piece.token_ids] == one.token_ids
    expected = llm.generate(PROMPT, sampling=drawn(n=3))
    assert [one.text for one in whole.outputs] == [one.text for one in expected.outputs]


def test_guided_sequences_obey_each(llm: LLM) -> None:
    output = llm.generate(PROMPT, guide=Guide.regex("[0-9]{6}"), sampling=drawn(n=3, max_tokens=20))
    assert all(len(one.text) == 6 and one.text.isdecimal() for one in output.outputs)
    assert all(one.stats.guided_valid for one in output.outputs)


def test_a_sequence_that_fails_fails_the_answer(llm: LLM) -> None:
    """Whichever it is; the prompt beside it is whole."""
    calls = 0

    def fail(request_id: int, logits: torch.Tensor, tokens: Any, stream: int, client_id: int | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise ValueError("planted")

    failed, whole = llm.generate(
        [PROMPT] * 2, sampling=[drawn(n=2, max_tokens=100), DRAWN], logits_processor=[fail, None]
    )
    assert isinstance(failed.error, RequestError) and isinstance(failed.error.__cause__, ValueError)
    assert whole.error is None and whole.token_ids == llm.generate(PROMPT, sampling=DRAWN).token_ids


# -- beams


def test_beams_are_those_of_the_executor(llm: LLM) -> None:
    """Best first; the log-probabilities are those that were ranked."""
    output = llm.generate(
        PROMPT,
        sampling=SamplingParams(max_tokens=8, logprobs=0, n=3),
        beam_width=4,
        length_penalty=1.0,
        early_stopping=0,
    )
    config = ExecutorConfig(max_batch_size=4, max_beam_width=4, max_seq_len=256)
    sampling = SamplingConfig(4, num_return_sequences=3, length_penalty=1.0, early_stopping=0)
    wanted = OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    with Executor(None, config, device="cpu") as executor:
        request = Request(output.prompt_token_ids, 8, sampling_config=sampling, output_config=wanted)
        (response,) = executor.await_responses(executor.enqueue_request(request))
    result = response.result
    assert [one.token_ids for one in output.outputs] == result.output_token_ids
    assert result.cum_log_probs is not None
    sums = [one.cumulative_logprob for one in output.outputs]
    assert sums == pytest.approx(result.cum_log_probs, rel=1e-5)
    assert [one.text for one in output.outputs] == [
        llm.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in result.output_token_ids
    ]


def test_as_many_answers_as_beams_unless_fewer_are_asked_for(llm: LLM) -> None:
    wide, one = llm.generate(
        [PROMPT] * 2, sampling=[None, SamplingParams(max_tokens=256, n=1)], beam_width=[3, 3]
    )
    assert [len(wide.outputs), len(one.outputs)] == [3, 1]
    assert wide.token_ids == one.token_ids and wide.cumulative_logprob is None


def test_beams_end_before_their_stop_words(llm: LLM) -> None:
    """The text of each ends there; its tokens hold the word."""
    free = llm.generate(PROMPT, sampling=GREEDY, beam_width=3)
    word = free.text[3:6]
    output = llm.generate(PROMPT, sampling=SamplingParams(max_tokens=12, stop=word), beam_width=3)
    ended = [one for one in output.outputs if one.stopped_by == word]
    assert ended
    for one in output.outputs:
        whole = llm.tokenizer.decode(one.token_ids, skip_special_tokens=True)
        assert one.text == (whole[: whole.index(word)] if one in ended else whole)


def test_guided_beams_are_whole(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=30)
    output = llm.generate(
        PROMPT, guide=Guide.regex("(yes|no|maybe), [0-9]{2}"), sampling=sampling, beam_width=3
    )
    assert len({one.text for one in output.outputs}) == 3
    assert all(one.stats.guided_valid and one.finish_reason == "stop" for one in output.outputs)


# -- drafts


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_given_text_is_drafted(drafting: LLM, kind: str) -> None:
    """The same tokens in fewer iterations; a prompt of a list that is given nothing goes on alone."""
    sampling = SamplingParams(max_tokens=40)
    alone = drafting.generate(PROMPT, sampling=sampling)
    given: Any = alone.text if kind == "text" else alone.token_ids
    output = drafting.generate(PROMPT, sampling=sampling, given=given)
    assert output.token_ids == alone.token_ids
    assert output.stats.iterations < alone.stats.iterations / 3
    assert output.stats.accepted_drafts > 10
    with_text, without = drafting.generate([PROMPT] * 2, sampling=sampling, given=[given, None])
    assert with_text.token_ids == without.token_ids == alone.token_ids
    assert (with_text.stats.accepted_drafts > 10, without.stats.accepted_drafts) == (True, 0)
    both = drafting.generate([PROMPT] * 2, sampling=sampling, given=given)
    assert all(one.stats.accepted_drafts > 10 for one in both)
    pieces = list(drafting.stream(PROMPT, sampling=sampling, given=given))
    assert "".join(piece.text for piece in pieces) == alone.text and len(pieces) < 14


def test_a_request_may_have_fewer_drafts(drafting: LLM) -> None:
    sampling = SamplingParams(max_tokens=40)
    tokens = drafting.generate(PROMPT, sampling=sampling).token_ids
    few, many = drafting.generate([PROMPT] * 2, sampling=sampling, given=tokens, max_drafts=[1, None])
    assert few.token_ids == many.token_ids == tokens
    assert few.stats.iterations > 2 * many.stats.iterations


# -- order and time


def test_a_higher_priority_goes_first() -> None:
    with LLM(device="cpu", engine=EngineConfig(max_batch=1, max_seq_len=128)) as llm:
        outputs = llm.generate([PROMPT] * 4, sampling=GREEDY, priority=[0.1, None, 0.2, 0.9])
    moments = [output.stats.scheduled_at or 0.0 for output in outputs]
    assert sorted(range(4), key=moments.__getitem__) == [3, 1, 2, 0]  # they come before the same step


def test_time_runs_out_with_what_there_is(llm: LLM) -> None:
    long = SamplingParams(max_tokens=200, min_tokens=200)
    late, other = llm.generate([PROMPT] * 2, sampling=long, timeout_s=[0.03, 1e300])
    assert late.finish_reason == "timeout" and late.error is None and len(late.token_ids) < 200
    assert other.finish_reason in ("length", "stop")
    assert other.text.startswith(late.text)


# -- logits and tensors


def test_a_processor_acts_on_its_own_prompt(llm: LLM) -> None:
    seen: set[int] = set()

    def only_five(
        request_id: int, logits: torch.Tensor, tokens: Any, stream: int, client_id: int | None
    ) -> None:
        seen.add(request_id)
        logits.fill_(-100.0)
        logits[..., 5] = 100.0

    bent, straight = llm.generate([PROMPT] * 2, sampling=GREEDY, logits_processor=[only_five, None])
    assert bent.token_ids == [5] * 12 and len(seen) == 1
    assert straight.token_ids == llm.generate(PROMPT, sampling=GREEDY).token_ids
    pieces = list(llm.stream(PROMPT, sampling=GREEDY, logits_processor=only_five))
    assert [token for piece in pieces for token in piece.token_ids] == [5] * 12


def test_a_logits_processor_acts_on_every_beam(llm: LLM) -> None:
    seen: set[tuple[int, ...]] = set()

    def few(request_id: int, logits: torch.Tensor, tokens: list[list[int]], *_: object) -> None:
        assert logits.shape[1] == len(tokens)
        seen.update(map(tuple, tokens))
        logits[..., 7:] = -torch.inf

    sampling = SamplingParams(max_tokens=5, min_tokens=5)
    found = llm.generate(PROMPT, sampling=sampling, beam_width=2, logits_processor=few).outputs
    assert len(found) == 2 and {token for output in found for token in output.token_ids} <= set(range(7))
    prompt = tuple(found[0].prompt_token_ids)
    begun = {(*prompt, *output.token_ids[:count]) for output in found for count in range(5)}
    assert begun <= seen  # each beam's own text, from the prompt on


def test_tensors_come_with_the_answer(llm: LLM) -> None:
    names: list[str | tuple[str, bool]] = [("hidden_states.0", True), "hidden_states.1"]
    output = llm.generate(
        PROMPT,
        sampling=GREEDY,
        return_context_logits=True,
        return_generation_logits=True,
        additional_outputs=names,
    )
    assert output.generation_logits is not None and output.context_logits is not None
    assert output.generation_logits.argmax(-1).tolist() == output.token_ids
    assert output.context_logits.shape[0] == len(output.prompt_token_ids)
    assert set(output.additional) == {"hidden_states.0", "context_hidden_states.0", "hidden_states.1"}
    assert output.additional["context_hidden_states.0"].shape[0] == len(output.prompt_token_ids)
    plain = llm.generate(PROMPT, sampling=GREEDY)
    assert plain.generation_logits is None and plain.context_logits is None and not plain.additional


# -- what can't be


REFUSED: list[tuple[RequestOptions, SamplingParams | None, str]] = [
    ({"priority": 1.5}, None, "priority is 1.5; it must be 0 to 1"),
    ({"priority": "high"}, None, "priority is 'high'"),  # type: ignore[typeddict-item]
    ({"timeout_s": -1}, None, "timeout_s is -1; it must be 0 seconds or more"),
    ({"timeout_s": float("nan")}, None, "timeout_s is nan"),
    ({"max_drafts": 9}, None, "max_drafts is 9; it must be 0"),
    ({"given": "x"}, None, r"make it with Speculation\.given"),
    ({"given": "x", "max_drafts": 0}, None, "leave one of the two out"),
    ({"beam_width": 5}, None, r"or raise EngineConfig\.max_beam_width"),
    ({"beam_width": 0}, None, "the beam width is 0"),
    ({"beam_width": 2, "max_drafts": 2}, None, "beams are not drafted"),
    ({"beam_width": 2}, SamplingParams(n=3), "n is 3; a search with 2 beams gives 1 to 2 answers"),
    ({"beam_width": 2}, SamplingParams(top_k=3), "top_k is 3; beams are not sampled"),
    ({"length_penalty": 1.0}, None, "length_penalty is for a search by beams"),
    ({}, SamplingParams(n=5000), "a request has 1024 sequences at most"),
    ({"logits_processor": 5}, None, "it must be a callable"),  # type: ignore[typeddict-item]
    ({"additional_outputs": "TopKLogits"}, None, "it must be a list of names"),
    (
        {"additional_outputs": ["nothing"]},
        None,
        r"name it in EngineConfig\.additional_outputs",
    ),
    (
        {"additional_outputs": [("hidden_states.1", True)]},
        None,
        r"'hidden_states.1' of the prompt.*name it in EngineConfig",
    ),
    ({"return_context_logits": 1}, None, "it must be True or False"),  # type: ignore[typeddict-item]
]


@pytest.mark.parametrize(("options", "sampling", "error"), REFUSED)
def test_what_cant_be_is_refused(
    llm: LLM, options: RequestOptions, sampling: SamplingParams | None, error: str
) -> None:
    """Before anything begins, also in a list and as a stream."""
    began = llm.num_iterations
    with pytest.raises(InputError, match=error):
        llm.generate(PROMPT, sampling=sampling, **options)
    with pytest.raises(InputError, match=error):
        llm.generate([PROMPT] * 2, sampling=[None, sampling], **options)
    if "beam_width" not in options:
        with pytest.raises(InputError, match=error):
            llm.stream(PROMPT, sampling=sampling, **options)
    assert llm.num_iterations == began


def test_what_an_engine_must_be_made_with_is_said() -> None:
    with LLM(device="cpu", engine=EngineConfig(max_batch=1, max_seq_len=64)) as llm:
        with pytest.raises(InputError, match=r"EngineConfig\(gather_generation_logits=True\)"):
            llm.generate(PROMPT, return_generation_logits=True)
        with pytest.raises(InputError, match=r"or raise EngineConfig\.max_beam_width"):
            llm.generate(PROMPT, beam_width=2)


def test_lists_of_options_go_with_lists_of_prompts(llm: LLM) -> None:
    with pytest.raises(InputError, match="priority has 3 entries for 2 prompts"):
        llm.generate([PROMPT] * 2, priority=[0.1, 0.2, 0.3])
    with pytest.raises(InputError, match="priority has 2 entries for 1 prompts"):
        llm.generate(PROMPT, priority=[0.1, 0.2])
    with pytest.raises(InputError, match="a search by beams has no pieces"):
        llm.stream(PROMPT, beam_width=2)
    with pytest.raises(TypeError, match="there is no option 'temperature'"):
        llm.generate(PROMPT, temperature=1.0)  # type: ignore[call-overload]


def test_a_conversation_takes_the_same_options(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Write JSON."}]
    output = llm.chat(messages, sampling=drawn(n=2), timeout_s=60.0)
    assert len(output.outputs) == 2


def test_a_prefix_is_found_with_its_own_salt_alone() -> None:
    prompt = "Text: " + "A long beginning that takes more than a page. " * 4
    with LLM() as llm:
        salts = ["one", None, "two", "one", None, "two"]
        reused = [
            llm.generate(prompt, sampling=SamplingParams(max_tokens=2), cache_salt=salt).stats.reused_tokens
            for salt in salts
        ]
        with pytest.raises(InputError, match="cache_salt is ''"):
            llm.generate(prompt, cache_salt="")
    assert reused[:3] == [0, 0, 0] and min(reused[3:]) > 16
