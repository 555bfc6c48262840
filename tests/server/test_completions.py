"""/v1/completions, /tokenize and /detokenize."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
import torch

from support.server.asking import ANSWER, PROMPT, ask
from support.server.running import Running
from weft.server.reading import jobs
from weft.server.writing import common


def complete(client: Any, **more: Any) -> Any:
    asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 40, **more}
    return client.completions.create(**asked)


def test_prompts_and_answers_in_order(client: Any) -> None:
    other = PROMPT.replace("Ada Berg is 31", "Alan Turing is 41")
    answer = complete(client, prompt=[PROMPT, other], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    found = [json.loads(choice.text) for choice in answer.choices]
    assert found == [ANSWER, ANSWER, {"name": "Alan Turing", "age": 41}, {"name": "Alan Turing", "age": 41}]
    streamed = ["", "", "", ""]
    for chunk in complete(client, prompt=[PROMPT, other], n=2, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in answer.choices]


def test_16_tokens_unless_told_otherwise(client: Any) -> None:
    answer = client.completions.create(model="tiny", prompt="Text:", extra_body={"ignore_eos": True})
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")


def test_tokens_as_prompts(client: Any, server: Running) -> None:
    tokens = list(server.state.models["tiny"].text.prompt(PROMPT))
    assert complete(client, prompt=tokens).choices[0].text == complete(client).choices[0].text
    both = complete(client, prompt=[tokens, tokens[:5]])
    assert len(both.choices) == 2 and both.usage.prompt_tokens == len(tokens) + 5


def test_echo_with_log_probabilities_of_the_prompt(client: Any, server: Running) -> None:
    """As evaluation harnesses ask: no answer, and how likely each token of the prompt was."""
    answer = complete(client, echo=True, logprobs=2, max_tokens=0)
    (choice,) = answer.choices
    served = server.state.models["tiny"]
    prompt = served.text.prompt(PROMPT)
    assert choice.text == PROMPT and choice.finish_reason == "length"
    assert len(choice.logprobs.tokens) == len(prompt) and choice.logprobs.token_logprobs[0] is None
    expected = expected_logprobs(server, prompt)
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=OF_THE_CACHE)
    for text, top in zip(choice.logprobs.tokens[1:], choice.logprobs.top_logprobs[1:], strict=True):
        assert text in top and 2 <= len(top) <= 3
    for text, offset in zip(choice.logprobs.tokens[1:], choice.logprobs.text_offset[1:], strict=True):
        assert PROMPT[offset:].startswith(text)
    longer = complete(client, echo=True, logprobs=0)
    assert longer.choices[0].text == PROMPT + complete(client).choices[0].text
    assert len(longer.choices[0].logprobs.tokens) == len(prompt) + longer.usage.completion_tokens - 1


SPLIT = "é日本😀 x"
"""Characters of several tokens."""


def begins(texts: list[str], offsets: list[int], text: str) -> None:
    """Whether each token that is text by itself stands where it begins."""
    for token, offset in zip(texts, offsets, strict=True):
        assert 0 <= offset <= len(text)
        assert not token or "\ufffd" in token or token == "<s>" or text[offset:].startswith(token), (
            token,
            offset,
        )


def test_offsets_are_in_characters(client: Any) -> None:
    told = complete(client, prompt=SPLIT, echo=True, logprobs=0, max_tokens=0).choices[0].logprobs
    begins(told.tokens, told.text_offset, SPLIT)
    assert SPLIT[told.text_offset[-1] :] == told.tokens[-1] == " x"
    more: dict[str, Any] = {"logprobs": 0, "max_tokens": 40, "extra_body": {"guide": {"choice": [SPLIT * 2]}}}
    (choice,) = complete(client, **more).choices
    begins(choice.logprobs.tokens, choice.logprobs.text_offset, choice.text)
    assert choice.text == SPLIT * 2 and max(choice.logprobs.text_offset) < len(choice.text)
    assert all(
        list(top) == [text]
        for text, top in zip(choice.logprobs.tokens, choice.logprobs.top_logprobs, strict=True)
    )
    chunks = [chunk.choices[0].logprobs for chunk in complete(client, stream=True, **more)]
    assert [at for one in chunks if one for at in one.text_offset] == choice.logprobs.text_offset


def test_a_prompt_alone_costs_no_answer(client: Any, server: Running) -> None:
    """The engine gives a token, which nobody asked for."""
    asked: dict[str, Any] = {"echo": True, "max_tokens": 0, "n": 2}
    whole = complete(client, **asked, extra_body={"return_token_ids": True})
    assert (whole.usage.completion_tokens, whole.usage.total_tokens) == (0, whole.usage.prompt_tokens)
    assert whole.weft["origins"] == {} and all(choice.token_ids == [] for choice in whole.choices)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(complete(client, **asked, stream=True, stream_options=options))
    assert [chunk.usage.completion_tokens for chunk in chunks] == [0, 0, 0]
    found = {chunk.choices[0].index: chunk.choices[0] for chunk in chunks[:-1]}
    assert {index: (one.text, one.finish_reason) for index, one in found.items()} == dict.fromkeys(
        range(2), (PROMPT, "length")
    )


def test_log_probabilities_of_prompts_are_read_once(
    client: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each prompt, and told of each choice, as vLLM tells them."""
    read: list[int] = []

    def counted(*given: Any) -> Any:
        read.append(1)
        return found_of(*given)

    found_of = common.prompt_logprobs
    monkeypatch.setattr(common, "prompt_logprobs", counted)
    short = "Text: Ada"
    answer = complete(client, prompt=[PROMPT, short], n=2, max_tokens=2, extra_body={"prompt_logprobs": 1})
    assert len(read) == 2
    told = [choice.prompt_logprobs for choice in answer.choices]
    assert told[0] == told[1] and told[2] == told[3] and told[0] != told[2]
    prompt = server.state.models["tiny"].text.prompt(PROMPT)
    assert told[0][0] is None and len(told[0]) == len(prompt)
    for token, entry, value in zip(prompt[1:], told[0][1:], expected_logprobs(server, prompt), strict=True):
        own, *others = entry.items()
        assert own[0] == str(token) and own[1]["logprob"] == pytest.approx(value, abs=OF_THE_CACHE)
        assert (own[1]["rank"] == 1) == (not others)
        assert own[1]["rank"] >= 1 and [one["rank"] for _, one in others] in ([], [1])
    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": PROMPT}], extra_body={"prompt_logprobs": 1}
    )
    assert chat.prompt_logprobs == told[0]


def test_what_is_the_same_of_all_prompts_is_made_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(*given: Any) -> Any:
        made.append(1)
        return allowed(*given)

    allowed = jobs._allowed
    monkeypatch.setattr(jobs, "_allowed", counted)
    answer = complete(client, prompt=["a", "b", "c"], max_tokens=3, extra_body={"allowed_token_ids": [70]})
    assert len(answer.choices) == 3 and len(made) == 1


OF_THE_CACHE = 0.05
"""How far a log probability may be from that of transformers, which keeps keys and values in float32, not bfloat16."""


def expected_logprobs(server: Running, prompt: tuple[int, ...]) -> list[float]:
    """By transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(server.state.models["tiny"].client.built.path)
    with torch.no_grad():
        values = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    found: list[float] = values.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
    return found


def test_echo_in_a_stream(client: Any) -> None:
    text = "".join(chunk.choices[0].text for chunk in complete(client, echo=True, stream=True))
    assert text == PROMPT + complete(client).choices[0].text


def test_tokens_are_told_as_a_chat_tells_them(client: Any) -> None:
    more = {"logprobs": 2, "extra_body": {"token_details": True, "guide": {"choice": ["yes", "no"]}}}
    (choice,) = complete(client, **more).choices
    details = choice.model_extra["token_details"]
    assert [entry["token"] for entry in details] == choice.logprobs.tokens
    assert all(len(entry["top_logprobs"]) == 2 and entry["origin"] for entry in details)
    assert any(one.get("forbidden") for entry in details for one in entry["top_logprobs"])
    chunks = [chunk.choices[0].model_extra for chunk in complete(client, stream=True, **more)]
    streamed = [entry for chunk in chunks for entry in chunk.get("token_details", ())]
    assert [entry["token_id"] for entry in streamed] == [entry["token_id"] for entry in details]
    with pytest.raises(openai.BadRequestError, match="token_details needs logprobs"):
        complete(client, extra_body={"token_details": True})


def test_usage_with_each_chunk(client: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(complete(client, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == counts[-2] > 10


def test_what_is_wrong_is_named(client: Any) -> None:
    for more, param in (
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 99999]}, None),
        ({"max_tokens": 0}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"extra_body": {"top_k": -2}}, "top_k"),
        ({"echo": True, "logprobs": 1, "stream": True}, "stream"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            complete(client, **more)
        assert param is None or caught.value.param == param, more


def test_all_of_the_vocabulary(client: Any) -> None:
    for top_k in (-1, 0):
        assert (
            complete(client, extra_body={"top_k": top_k}).choices[0].text == complete(client).choices[0].text
        )


def test_tokenize_and_back(server: Running) -> None:
    status, found = ask(f"{server.url}/tokenize", {"prompt": PROMPT, "return_token_strs": True})
    assert status == 200 and found["count"] == len(found["tokens"]) and found["max_model_len"] == 1024
    assert "".join(found["token_strs"]).removeprefix("<s>") == PROMPT
    back = ask(f"{server.url}/detokenize", {"tokens": found["tokens"]})
    assert back == (
        200,
        {"prompt": "".join(found["token_strs"])},
    )  # with the special tokens, as vLLM has them
    messages = [{"role": "user", "content": PROMPT}]
    assert ask(f"{server.url}/tokenize", {"messages": messages})[1]["tokens"] == found["tokens"]
    assert ask(f"{server.url}/detokenize", {"tokens": [99999]})[0] == 400
    long = "a b " * 400_000
    for asked, param in (
        ({}, "prompt"),
        ({"prompt": long}, "prompt"),
        ({"messages": [{"role": "user", "content": long}]}, "messages"),
    ):
        assert ask(f"{server.url}/tokenize", asked)[1]["error"]["param"] == param


def test_tokenize_reads_a_conversation_as_the_chat_does(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = server.state.models["tiny"].text.tokenizer_for("a test")
    shown = "{{ messages[0].content }}{{ documents }}{{ reasoning_effort }}{{ enable_thinking }}{{ tools }}"
    monkeypatch.setattr(tokenizer, "chat_template", shown)
    deep: Any = {}
    for _ in range(900):
        deep = {"a": deep}
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    more = {"documents": [{"text": "y"}], "reasoning_effort": "none"}
    found = ask(f"{server.url}/tokenize", {**asked, **more})[1]
    assert ask(f"{server.url}/detokenize", {"tokens": found["tokens"]})[1]["prompt"] == (
        "x[{'text': 'y'}]noneFalseNone"
    )
    chat = ask(f"{server.url}/v1/chat/completions", {**asked, **more, "max_tokens": 1})[1]
    assert chat["usage"]["prompt_tokens"] == found["count"]
    for wrong, param in (
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]}, "tools"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ):
        status, told = ask(f"{server.url}/tokenize", {**asked, **wrong})
        assert (status, told["error"]["param"]) == (400, param)
