"""/v1/chat/completions as OpenAI's client sees it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from support.server.asking import ANSWER, MESSAGES, PROMPT, SCHEMA
from support.server.running import Running
from weft import Guide, SamplingParams
from weft.core.request import Request

STRICT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}


def chat(client: Any, **more: Any) -> Any:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 40,
        **more,
    }
    return client.chat.completions.create(**asked)


def test_an_answer_and_what_it_cost(client: Any, server: Running) -> None:
    answer = chat(client, response_format=STRICT)
    (choice,) = answer.choices
    assert json.loads(choice.message.content) == ANSWER and choice.finish_reason == "stop"
    assert (answer.object, answer.model) == ("chat.completion", "tiny") and answer.id.startswith("chatcmpl-")
    served = server.state.models["tiny"]
    prompt = served.text.prompt(PROMPT)
    assert answer.usage.prompt_tokens == len(prompt)
    (handle,) = served.client.submit(
        [Request(prompt, SamplingParams(max_tokens=40), guide=Guide.json_schema(SCHEMA))]
    )
    [(_, deltas)] = served.client.responses.take([handle.id], 30)
    sequence = deltas[-1].sequence
    assert sequence is not None and answer.usage.completion_tokens == len(sequence.output.token_ids)
    assert answer.weft["guided_valid"] == [True] and sum(answer.weft["origins"].values()) == len(
        sequence.output.token_ids
    )


def test_a_stream_is_the_same_text(client: Any) -> None:
    whole = chat(client, response_format=STRICT)
    chunks = list(chat(client, response_format=STRICT, stream=True, stream_options={"include_usage": True}))
    *body, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in body)
    assert text == whole.choices[0].message.content
    assert body[0].choices[0].delta.role == "assistant" and body[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    origins = [origin for chunk in body for origin in getattr(chunk.choices[0], "token_origins", [])]
    assert len(origins) == whole.usage.completion_tokens
    assert {"sampled", "eagle3"} <= set(origins) <= {"sampled", "eagle3", "forced"}
    assert all(chunk.id == body[0].id for chunk in chunks)


def test_pydantic_models_are_parsed(client: Any) -> None:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, temperature=0, response_format=Person
    )
    assert answer.choices[0].message.parsed == Person(**ANSWER)


def test_several_answers_with_a_seed(client: Any) -> None:
    asked = {"n": 3, "seed": 7, "temperature": 1.0, "top_p": 0.9}
    first, again = (chat(client, **asked) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    alone = chat(client, seed=8, temperature=1.0, top_p=0.9)
    assert alone.choices[0].message.content == texts[1], "sequence i has the seed + i"
    streamed: dict[int, str] = {}
    for chunk in chat(client, **asked, stream=True):
        (choice,) = chunk.choices
        streamed[choice.index] = streamed.get(choice.index, "") + (choice.delta.content or "")
    assert [streamed[index] for index in range(3)] == texts


def test_log_probabilities_say_what_was_forbidden(client: Any) -> None:
    guide = {"guide": {"regex": "[a-c]{3}"}}
    answer = chat(client, logprobs=True, top_logprobs=3, extra_body=guide)
    (choice,) = answer.choices
    content = choice.logprobs.content
    assert "".join(entry.token for entry in content if entry.token != "</s>") == choice.message.content
    first = content[0]
    assert first.num_allowed < 100 and len(first.top_logprobs) == 3
    assert first.top_logprobs[0].forbidden and first.top_logprobs[0].logprob > first.logprob
    assert first.origin == "sampled" and bytes(first.bytes).decode() == first.token
    streamed = [
        entry
        for chunk in chat(client, logprobs=True, top_logprobs=3, extra_body=guide, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in content]


def test_stop_words_are_cut_and_never_shown(client: Any) -> None:
    whole = chat(client).choices[0].message.content
    stopped = chat(client, stop=["Berg"])
    text = whole[: whole.index("Berg")]
    assert stopped.choices[0].message.content == text
    assert (stopped.choices[0].finish_reason, stopped.choices[0].stop_reason) == ("stop", "Berg")
    streamed = "".join(
        chunk.choices[0].delta.content or "" for chunk in chat(client, stop=["Berg"], stream=True)
    )
    assert streamed == text
    kept = chat(client, stop=["Berg"], extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].message.content == text + "Berg"


def test_a_prediction_is_drafted(client: Any) -> None:
    plain = chat(client)
    predicted = chat(client, prediction={"type": "content", "content": plain.choices[0].message.content})
    assert predicted.choices[0].message.content == plain.choices[0].message.content
    given = predicted.weft["origins"].get("given", 0)
    assert given > 5 and predicted.usage.completion_tokens_details.accepted_prediction_tokens == given
    assert plain.weft["speculative_decoding"]["num_accepted_tokens"] > 0  # which nobody predicted
    details = plain.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (0, 0)
    with pytest.raises(openai.BadRequestError, match="leave prediction out"):
        chat(client, model="plain", prediction={"type": "content", "content": "x"})


def test_content_in_parts_and_other_roles(client: Any) -> None:
    parts = [{"type": "text", "text": PROMPT[:20]}, {"type": "text", "text": PROMPT[20:]}]
    answer = chat(client, messages=[{"role": "developer", "content": parts}])
    assert json.loads(answer.choices[0].message.content) == ANSWER
    with pytest.raises(openai.BadRequestError, match="image_url") as caught:
        chat(
            client, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        )
    assert caught.value.param == "messages"


def test_sampling_parameters_are_heeded(client: Any) -> None:
    banned = chat(client, logit_bias={"262": -100})
    assert not banned.choices[0].message.content.startswith('{"')
    only = chat(client, max_tokens=4, extra_body={"allowed_token_ids": [70, 71], "return_token_ids": True})
    assert set(only.choices[0].token_ids) <= {70, 71} and len(only.choices[0].token_ids) == 4
    longer = chat(client, max_tokens=30, extra_body={"ignore_eos": True})
    assert longer.usage.completion_tokens == 30 and longer.choices[0].finish_reason == "length"
    least = chat(client, extra_body={"min_tokens": 25})
    assert least.usage.completion_tokens >= 25
    words = chat(client, extra_body={"bad_words": ["Ada"]})
    assert "Ada" not in words.choices[0].message.content
    cut = chat(client, extra_body={"truncate_prompt_tokens": 5})
    assert cut.usage.prompt_tokens == 5


def test_the_prompt_has_log_probabilities(client: Any) -> None:
    answer = chat(client, max_tokens=2, extra_body={"prompt_logprobs": 2, "return_token_ids": True})
    entries = answer.prompt_logprobs
    assert len(entries) == answer.usage.prompt_tokens == len(answer.prompt_token_ids) and entries[0] is None
    token, own = answer.prompt_token_ids[1], entries[1]
    assert own[str(token)]["logprob"] <= 0 and 2 <= len(own) <= 3


def test_beams(client: Any) -> None:
    answer = chat(client, model="plain", n=3, extra_body={"use_beam_search": True})
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert json.loads(answer.choices[0].message.content) == ANSWER
    with pytest.raises(openai.BadRequestError, match="not streamed"):
        chat(client, model="plain", stream=True, extra_body={"use_beam_search": True})


def test_drafts_can_be_limited_by_request(client: Any) -> None:
    answer = chat(client, extra_body={"max_drafts": 0})
    assert answer.weft["origins"] == {"sampled": answer.usage.completion_tokens}
    assert json.loads(answer.choices[0].message.content) == ANSWER


def test_a_conversation_goes_on_in_the_last_message(client: Any) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": '{"name": "Ada'}]
    answer = chat(client, messages=messages, extra_body={"continue_final_message": True})
    assert '{"name": "Ada' + answer.choices[0].message.content == json.dumps(ANSWER)
