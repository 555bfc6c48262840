"""Guided requests: their kinds, guides under a name, and what goes wrong with them, which is theirs alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal

import jsonschema
import pytest

from support.executor import GUIDED, answer, request, until_final
from weft import Guide, GuideError, InputError
from weft.executor import Executor, FinishReason, GuidedDecodingParams, GuideType, SamplingConfig

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "regex", "pattern": "[0-9]{2}"},
        "end": "</a>",
    },
}


def guided(kind: GuideType, guide: str | None = None, **fields: Any) -> Any:
    params = GuidedDecodingParams(kind, guide)
    return request(120, end_id=None, guided_decoding_params=params, **fields)


def text(executor: Executor, tokens: list[int]) -> str:
    assert executor.client.built.text.tokenizer is not None
    told: str = executor.client.built.text.tokenizer.decode(tokens, skip_special_tokens=True)
    return told


def test_every_kind_of_guide(executor: Executor) -> None:
    def told(kind: GuideType, guide: str | None = None) -> str:
        return text(executor, answer(executor, guided(kind, guide)))

    assert told(GuideType.JSON)[0] in "{["
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", told(GuideType.REGEX, "[0-9]{3}-[a-f]{2}"))
    assert re.fullmatch("<[a-c]{2}>", told(GuideType.EBNF_GRAMMAR, 'root ::= "<" [a-c] [a-c] ">"'))
    assert re.fullmatch("<a>[0-9]{2}</a>", told(GuideType.STRUCTURAL_TAG, json.dumps(TAG)))
    assert re.fullmatch("<[a-c]{2}>", told(GuideType.LARK, 'start: "<" /[a-c]{2}/ ">"'))
    jsonschema.validate(json.loads(told(GuideType.JSON_SCHEMA, json.dumps(SCHEMA))), SCHEMA)


def test_guides_found_compiled_are_counted(executor: Executor) -> None:
    def counts() -> tuple[int, int]:
        answer(executor, request(2))
        stats = executor.get_latest_iteration_stats()[-1]
        return stats.guide_cache_hits, stats.guide_cache_misses

    hits, misses = counts()
    for _ in range(3):
        answer(executor, guided(GuideType.REGEX, "counted [0-9]{2}"))
    assert counts() == (hits + 2, misses + 1)


def test_sequences_share_a_guide(executor: Executor) -> None:
    config = SamplingConfig(num_return_sequences=3, temperature=1.0, seed=3)
    number = executor.enqueue_request(guided(GuideType.REGEX, "[0-9]{9}", sampling_config=config))
    for response in until_final(executor, number):
        (tokens,) = response.result.output_token_ids
        assert re.search("[0-9]{9}$", text(executor, tokens))


def test_a_wrong_guide_is_its_requests_error(executor: Executor) -> None:
    wrong = [
        guided(GuideType.JSON_SCHEMA, '{"$ref": "#"}'),
        guided(GuideType.JSON_SCHEMA, "{"),
        guided(GuideType.REGEX, "(?=a)"),
        guided(GuideType.EBNF_GRAMMAR, 'root ::= "a" missing'),
        guided(GuideType.STRUCTURAL_TAG, "{}"),
    ]
    numbers = executor.enqueue_requests([*wrong, guided(GuideType.REGEX, "[0-9]{4}")])
    for number in numbers[:-1]:
        (response,) = until_final(executor, number)
        assert response.has_error()
    (fine,) = until_final(executor, numbers[-1])
    assert not fine.has_error()


def test_an_end_of_its_own_does_not_fit_a_guide(executor: Executor) -> None:
    params = GuidedDecodingParams(GuideType.REGEX, "[0-9]{4}")
    (end, *_) = executor.client.built.text.end_ids
    for own in (end, None, -1):
        (response,) = until_final(
            executor, executor.enqueue_request(request(9, end_id=own, guided_decoding_params=params))
        )
        assert response.result.finish_reasons == [FinishReason.END_ID]
        assert end not in response.result.output_token_ids[0]  # it ends the answer, and is no part of it
    number = executor.enqueue_request(request(9, end_id=77, guided_decoding_params=params))
    (response,) = until_final(executor, number)
    assert "leave end_id out" in response.error_msg


def test_without_a_config_guided_requests_are_refused(make: Callable[..., Executor]) -> None:
    executor = make()
    refused, served = executor.enqueue_requests([guided(GuideType.JSON), request(2)])
    (response,) = until_final(executor, refused)
    assert "GuidedDecodingConfig" in response.error_msg
    assert not until_final(executor, served)[-1].has_error()
    with pytest.raises(InputError, match="GuidedDecodingConfig"):
        executor.register_guide("digits", Guide.regex("[0-9]+"))


def test_guides_under_a_name(make: Callable[..., Executor]) -> None:
    """Compiled once, kept whatever the cache drops; a name may be given anew, and forgotten."""
    executor = make(guided_decoding_config=GUIDED)
    executor.register_guide("digits", Guide.regex("[0-9]{5}")).result()
    executor.register_guide("letters", GuidedDecodingParams(GuideType.REGEX, "[a-z]{5}"))
    assert executor.register_guide("word", Literal["yes"]).result() is not None
    params = GuidedDecodingParams.handle("word")
    told = answer(executor, request(20, end_id=None, guided_decoding_params=params))
    assert Guide.of(Literal["yes"]).parse(text(executor, told)) == "yes"
    executor.forget_guide("word")
    assert executor.client.compiler is not None
    cache = executor.client.compiler.cache
    cache.clear()
    num_compiled = cache.num_misses
    for name, pattern in (("digits", "[0-9]{5}"), ("letters", "[a-z]{5}")):
        params = GuidedDecodingParams.handle(name)
        told = answer(executor, request(20, end_id=None, guided_decoding_params=params))
        assert re.fullmatch(pattern, text(executor, told))
    assert cache.num_misses == num_compiled
    executor.register_guide("digits", Guide.regex("[0-9]{2}"))
    params = GuidedDecodingParams.handle("digits")
    told = answer(executor, request(20, end_id=None, guided_decoding_params=params))
    assert re.fullmatch("[0-9]{2}", text(executor, told))
    executor.forget_guide("digits")
    (response,) = until_final(
        executor, executor.enqueue_request(request(5, end_id=None, guided_decoding_params=params))
    )
    assert "no guide is registered as 'digits' (registered: letters)" in response.error_msg
    with pytest.raises(InputError, match="no guide is registered"):
        executor.forget_guide("digits")
    with pytest.raises(InputError, match="name"):
        executor.register_guide("", Guide.json())


WRONG_TEXTS = [
    GuidedDecodingParams(GuideType.JSON_SCHEMA, "{"),
    GuidedDecodingParams(GuideType.JSON_SCHEMA, '{"type": "colour"}'),
    GuidedDecodingParams(GuideType.REGEX, "(["),
    GuidedDecodingParams(GuideType.EBNF_GRAMMAR, 'root ::= "a" missing'),
    GuidedDecodingParams(GuideType.STRUCTURAL_TAG, "{}"),
]


def test_what_is_wrong_with_a_guides_text_comes_by_the_future(make: Callable[..., Executor]) -> None:
    """One way for all, as one error, and for requests that name the guide too."""
    executor = make(guided_decoding_config=GUIDED)
    for index, params in enumerate(WRONG_TEXTS):
        future = executor.register_guide(str(index), params)
        with pytest.raises(GuideError) as caught:
            future.result(60)
        assert caught.value.__cause__ is None and (
            caught.value.__suppress_context__ or caught.value.__context__ is None
        )
        named = request(5, end_id=None, guided_decoding_params=GuidedDecodingParams.handle(str(index)))
        (response,) = until_final(executor, executor.enqueue_request(named))
        assert str(caught.value) in response.error_msg
    for wrong in (5, None, GuidedDecodingParams.handle("0")):
        with pytest.raises(InputError):
            executor.register_guide("no guide", wrong)  # type: ignore[arg-type]


def test_a_registered_guide_that_does_not_compile(make: Callable[..., Executor]) -> None:
    executor = make(guided_decoding_config=GUIDED)
    with pytest.raises(GuideError):
        executor.register_guide("broken", Guide.ebnf('root ::= "a" missing')).result()
    params = GuidedDecodingParams.handle("broken")
    (response,) = until_final(
        executor, executor.enqueue_request(request(5, end_id=None, guided_decoding_params=params))
    )
    assert response.has_error()


UNIQUE = json.dumps(
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
)


def test_a_schema_that_can_not_be_enforced_whole_is_refused(executor: Executor) -> None:
    (response,) = until_final(executor, executor.enqueue_request(guided(GuideType.JSON_SCHEMA, UNIQUE)))
    assert "#: uniqueItems is not enforced" in response.error_msg


@pytest.mark.parametrize("streaming", [False, True])
def test_without_strict_each_result_tells_what_is_left_out(executor: Executor, streaming: bool) -> None:
    params = GuidedDecodingParams(GuideType.JSON_SCHEMA, UNIQUE, strict=False)
    sent = request(60, end_id=None, guided_decoding_params=params, streaming=streaming)
    responses = until_final(executor, executor.enqueue_request(sent))
    assert responses
    for response in responses:
        assert response.result.guide_notes == ("#: uniqueItems is not enforced",)
    plain = until_final(executor, executor.enqueue_request(guided(GuideType.REGEX, "[0-9]{4}")))
    assert all(response.result.guide_notes == () for response in plain)


def test_schemas_of_tags_are_strict_too(executor: Executor) -> None:
    form = {"type": "json_schema", "json_schema": json.loads(UNIQUE)}
    tag = json.dumps(
        {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": form, "end": "</a>"}}
    )
    for strict in (True, False):
        params = GuidedDecodingParams(GuideType.STRUCTURAL_TAG, tag, strict=strict)
        number = executor.enqueue_request(request(60, end_id=None, guided_decoding_params=params))
        (response,) = until_final(executor, number)
        told = response.error_msg if strict else "".join(response.result.guide_notes)
        assert "#/format/content/json_schema: uniqueItems is not enforced" in told
