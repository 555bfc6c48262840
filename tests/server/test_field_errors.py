"""Fields that are unknown, and values that are wrong: weft's own words say what is right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pydantic")

from pydantic import ValidationError

from support.server.asking import ask
from support.server.bodies import ASKED
from support.server.running import Running
from weft.server.errors import ApiError
from weft.server.protocol.body import Body
from weft.server.protocol.generation import ChatBody, CompletionBody
from weft.server.protocol.messages import CountTokensBody, MessagesBody
from weft.server.protocol.responses import ResponsesBody
from weft.server.routes.tokens import DetokenizeBody, TokenizeBody


def told(body: type[Body], data: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        body.read(data)
    assert caught.value.status == 400
    return caught.value


MEANT: list[tuple[type[Body], dict[str, Any], str]] = [
    (ChatBody, {"stop_sequences": ["x"]}, "'stop'"),
    (ChatBody, {"max_new_tokens": 5}, "'max_tokens'"),
    (ChatBody, {"max_output_tokens": 5}, "'max_tokens'"),
    (ChatBody, {"do_sample": False}, "'temperature'"),
    (ChatBody, {"num_return_sequences": 2}, "'n'"),
    (ChatBody, {"regex": "a"}, '"guide": {"regex": ...}'),
    (ChatBody, {"json_schema": {}}, '"guide": {"json_schema": ...}'),
    (ChatBody, {"grammar": "x"}, '"guide": {"ebnf": ...}'),
    (ChatBody, {"format": "json"}, "'response_format'"),
    (ChatBody, {"tempratur": 1}, "'temperature'"),
    (ChatBody, {"guide": {"json": {}}}, "'guide.json_schema'"),
    (ChatBody, {"guide": {"any_ordr": True}}, "'guide.any_order'"),
    (ChatBody, {"structured_outputs": {"json_schema": {}}}, "'structured_outputs.json'"),
    (
        ChatBody,
        {"response_format": {"type": "json_schema", "schema": {}}},
        "'response_format.json_schema.schema'",
    ),
    (ChatBody, {"stream_options": {"include_usages": True}}, "'stream_options.include_usage'"),
    (CompletionBody, {"max_completion_tokens": 5}, "'max_tokens'"),
    (ResponsesBody, {"max_tokens": 5}, "'max_output_tokens'"),
    (ResponsesBody, {"max_completion_tokens": 5}, "'max_output_tokens'"),
    (ResponsesBody, {"schema": {}}, '"text": {"format": ...}'),
    (ResponsesBody, {"text": {"fromat": {}}}, "'text.format'"),
    (MessagesBody, {"max_tokens_to_sample": 5}, "'max_tokens'"),
    (MessagesBody, {"stop_words": ["x"]}, "'stop_sequences'"),
    (MessagesBody, {"json_schema": {}}, '"output_config": {"format": ...}'),
    (MessagesBody, {"thinking": {"budget": 5}}, "'thinking.budget_tokens'"),
    (CountTokensBody, {"instructions": "x"}, "'system'"),
]


@pytest.mark.parametrize(("body", "more", "meant"), MEANT, ids=range(len(MEANT)))
def test_the_field_that_is_meant_is_told(body: type[Body], more: dict[str, Any], meant: str) -> None:
    error = told(body, {**ASKED[body], **more})
    assert error.message == f"unknown field {error.param!r}; did you mean {meant}?"


@pytest.mark.parametrize("field", [None, "guide", "structured_outputs", "response_format", "stream_options"])
def test_one_unknown_field_is_looked_at(field: str | None) -> None:
    """pydantic makes an error of each, of which a body has room for hundreds of thousands."""
    many = {f"x{i}": 0 for i in range(1000)}
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate({**ASKED[ChatBody], **(many if field is None else {field: many})})
    assert caught.value.error_count() == 1
    assert told(ChatBody, {**ASKED[ChatBody], "x": {"y": 1}, "temperature": "z"}).param == "x"


def test_another_routes_name_is_told_before_what_is_missing() -> None:
    for body, name, meant in (
        (ChatBody, "input", "messages"),
        (ChatBody, "prompt", "messages"),
        (CompletionBody, "messages", "prompt"),
        (CompletionBody, "input", "prompt"),
        (ResponsesBody, "messages", "input"),
        (MessagesBody, "prompt", "messages"),
        (TokenizeBody, "text", "prompt"),
        (DetokenizeBody, "token_ids", "tokens"),
    ):
        assert told(body, {name: "x"}).message == f"unknown field {name!r}; did you mean {meant!r}?"
    assert "give input" in told(ResponsesBody, {"prompt": "x"}).message
    assert "give text.format" in told(ResponsesBody, {"input": "x", "response_format": {}}).message


def bodies(body: type[Body]) -> Iterator[type[Body]]:
    yield body
    for name, field in body.model_fields.items():
        inner = body.within(field.alias or name)
        if inner is not None:
            yield from bodies(inner)


@pytest.mark.parametrize("body", ASKED, ids=lambda body: body.__name__)
def test_other_names_are_of_fields_that_there_are(body: type[Body]) -> None:
    for kind in bodies(body):
        for other, meant in kind.OTHER_NAMES.items():
            outer, _, inner = meant.partition(".")
            known = {field.alias or name for name, field in kind.model_fields.items()}
            assert other not in known and outer in known, (kind, other, meant)
            within = kind.within(outer) if inner else None
            assert within is None or inner in {f.alias or n for n, f in within.model_fields.items()}


SAID: list[tuple[type[Body], dict[str, Any], str]] = [
    (ChatBody, {"guide": "x"}, "guide: must be an object, not 'x'"),
    (ChatBody, {"response_format": ["x"]}, "response_format: must be an object, not a list"),
    (ChatBody, {"messages": []}, "messages: is empty; it must have at least one"),
    (ChatBody, {"messages": None}, "messages: must be a list, not null"),
    (ChatBody, {"messages": ["x"]}, "messages.0: must be an object, not 'x'"),
    (ChatBody, {"response_format": {}}, "response_format.type: is missing"),
    (ChatBody, {"max_tokens": "5"}, "max_tokens: must be an integer, not '5'"),
    (ChatBody, {"max_tokens": True}, "max_tokens: must be an integer, not true"),
    (ChatBody, {"max_tokens": 5.5}, "max_tokens: must be an integer, not 5.5"),
    (ChatBody, {"temperature": "1"}, "temperature: must be a number, not '1'"),
    (ChatBody, {"stream": "yes"}, "stream: must be true or false, not 'yes'"),
    (ChatBody, {"stream": 1}, "stream: must be true or false, not 1"),
    (ChatBody, {"n": 0}, "n: must be at least 1, not 0"),
    (ChatBody, {"n": 129}, "n: must be at most 128, not 129"),
    (ChatBody, {"stop": 5}, "stop: must be a text or a list, not 5"),
    (ChatBody, {"stop_token_ids": ["5"]}, "stop_token_ids.0: must be an integer, not '5'"),
    (ChatBody, {"request_id": "x" * 300}, "request_id: has 300 characters; it must have at most 256"),
    (ChatBody, {"logit_bias": {"x": 1}}, "logit_bias.x: this name must be an integer"),
    (ChatBody, {"stop": ["x"] * 10_001}, "stop: has 10001 entries; at most 10000 are read"),
]


@pytest.mark.parametrize(("body", "more", "said"), SAID, ids=range(len(SAID)))
def test_what_is_wrong_is_said(body: type[Body], more: dict[str, Any], said: str) -> None:
    assert told(body, {**ASKED[body], **more}).message == said


def test_what_is_of_another_type_and_means_the_same() -> None:
    read = ChatBody.read({**ASKED[ChatBody], "temperature": 1, "logit_bias": {"5": 1}})
    assert read.temperature == 1.0 and read.logit_bias == {5: 1.0}
    read = ChatBody.read({**ASKED[ChatBody], "max_tokens": 5.0, "temperature": 0.0, "top_p": 0.5})
    assert (read.max_tokens, read.temperature, read.top_p) == (5, 0.0, 0.5) and isinstance(
        read.temperature, float
    )


VALUES: list[Any] = [
    None, True, 5, -(10**9), 10**40, 1.5, float("inf"), "", "x", "x" * 600, [], [5], ["x"], [[]], [{}], {},
    {"x": 1}, {"x": "y"}, {"type": 5}, {"json": 5}, {"effort": 5}, {"regex": 5, "max_whitespace": -1},
]  # fmt: skip
PYDANTICS = re.compile(
    r"Input|[Vv]alid|[Ii]nstance|[Dd]ictionary|validation|[A-Z]\w+(?:Body|Guide|Format|Outputs)"
)


@pytest.mark.parametrize("body", ASKED, ids=lambda body: body.__name__)
def test_no_message_is_pydantics(body: type[Body]) -> None:
    found = set()
    for name, field in body.model_fields.items():
        for value in VALUES:
            try:
                body.read({**ASKED[body], field.alias or name: value})
            except ApiError as error:
                found.add(error.message)
    assert found and [message for message in found if PYDANTICS.search(message)] == []


def test_limits_that_are_given_once_or_alike() -> None:
    alike = ChatBody.read({**ASKED[ChatBody], "max_tokens": 5, "max_completion_tokens": 5})
    alike.check_together()
    assert alike.answer_tokens == 5
    with pytest.raises(ApiError, match="max_tokens is 5 and max_completion_tokens 6; give one"):
        ChatBody.read({**ASKED[ChatBody], "max_tokens": 5, "max_completion_tokens": 6}).check_together()
    with pytest.raises(ApiError, match="best_of is 3; it must equal n, which is 1"):
        CompletionBody.read({"prompt": "x", "best_of": 3}).check_together()


ROUTES = {
    "/chat/completions": "/v1/chat/completions",
    "/completions": "/v1/completions",
    "/responses/resp_1/input_items": "/v1/responses/resp_1/input_items",
    "/models": "/v1/models",
    "/messages/count_tokens": "/v1/messages/count_tokens",
    "/v1/v1/chat/completions": "/v1/chat/completions",
    "/v1/tokenize": "/tokenize",
}


@pytest.mark.parametrize("path", ROUTES)
def test_a_route_at_another_place_is_told(server: Running, path: str) -> None:
    for body in ({}, None):
        status, answer = ask(f"{server.url}{path}", body)
        assert status == 404
        assert answer["error"]["message"] == f"there is no route {path}; it is {ROUTES[path]}"
    assert ask(f"{server.url}/v1/nothing", {})[1]["error"]["message"] == "there is no route /v1/nothing"
    assert ask(f"{server.url}/v1/")[1]["error"]["message"] == "there is no route /v1/"
