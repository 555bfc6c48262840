"""`Output.parsed`: answers as objects of Python types, whole and streamed."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_origin
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, HttpUrl, TypeAdapter, WithJsonSchema, field_validator
from typing_extensions import TypedDict

from weft import LLM, EngineConfig, Guide, Output, SamplingParams
from weft.errors import AnswerError, GuideError, InputError, RequestError
from weft.grammar.python_types import PythonType

PROMPT = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string, "age": integer}\nJSON: '
SAMPLING = SamplingParams(max_tokens=64)


class Person(BaseModel):
    name: str
    age: int


@dataclass
class PersonData:
    name: str
    age: int


class PersonDict(TypedDict):
    name: str
    age: int


class PersonTuple(NamedTuple):
    name: str
    age: int


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Young(Person):
    @field_validator("age")
    @classmethod
    def _is_young(cls, age: int) -> int:
        if age > 30:
            raise ValueError("too old")
        return age


ADA = Person(name="Ada Berg", age=31)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", engine=EngineConfig(max_batch=4, max_beam_width=2)) as llm:
        yield llm


def last(pieces: Iterator[Any]) -> Output:
    *_, piece = pieces
    assert piece.output is not None
    return piece.output  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("guide", "expected"),
    [
        (Person, ADA),
        (PersonData, PersonData("Ada Berg", 31)),
        (PersonDict, {"name": "Ada Berg", "age": 31}),
        (list[Person], [ADA]),
        (TypeAdapter(tuple[Person]), (ADA,)),
        (dict[Literal["name", "age"], str | int], {"name": "Ada Berg", "age": 31}),
        (Guide.json_schema(Person, separators=(", ", ": ")), ADA),
        (Person | None, ADA),
    ],
)
def test_an_answer_is_an_object_whole_and_streamed(llm: LLM, guide: Any, expected: Any) -> None:
    output = llm.generate(PROMPT, SAMPLING, guide=guide)
    assert output.parsed == expected and type(output.parsed) is type(expected)
    assert output.parsed is output.parsed, "it is parsed once"
    streamed = last(llm.stream(PROMPT, SAMPLING, guide=guide))
    assert streamed.parsed == expected


@pytest.mark.parametrize(
    "guide",
    [
        PersonTuple,
        Color,
        int,
        float,
        bool,
        set[Color],
        date,
        datetime,
        timedelta,
        UUID,
        Decimal,
        Path,
        bytes,
        HttpUrl,
    ],
)
def test_other_types_give_objects_too(llm: LLM, guide: Any) -> None:
    sampling = SamplingParams(max_tokens=60, on_length="close")
    output = llm.generate(PROMPT, sampling, guide=guide)
    kind = get_origin(guide) or guide
    assert isinstance(output.parsed, kind)
    assert last(llm.stream(PROMPT, sampling, guide=guide)).parsed == output.parsed


def test_a_literal_is_json(llm: LLM) -> None:
    output = llm.generate("Is it so? ", guide=Literal["yes", "no"])
    assert output.text in ('"yes"', '"no"')
    assert output.text == f'"{output.parsed}"'


def test_a_list_of_guides_is_no_type(llm: LLM) -> None:
    guides = [Person, None, Guide.regex("[0-9]{2}"), list[Person]]
    outputs = llm.generate([PROMPT] * 4, SAMPLING, guide=guides)
    assert [output.parsed for output in outputs] == [ADA, None, None, [ADA]]
    assert outputs[1].typed is outputs[2].typed is None
    both = llm.generate([PROMPT] * 2, SAMPLING, guide=list[Person])
    assert [output.parsed for output in both] == [[ADA], [ADA]]
    with pytest.raises(InputError, match="guide is a list, but there is one prompt"):
        llm.generate(PROMPT, guide=[Person])
    with pytest.raises(GuideError, match=r"dict is not a guide; use Guide.json_schema\(...\)"):
        llm.generate(PROMPT, guide={"type": "object"})


def test_the_prompts_of_a_list_share_one_schema(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    makes, made = PythonType.schema, []
    monkeypatch.setattr(PythonType, "schema", lambda self: made.append(self.name) or makes(self))
    outputs = llm.generate([PROMPT] * 3, SAMPLING, guide=Person)
    assert [output.parsed for output in outputs] == [ADA] * 3
    assert made == ["Person"]


def test_chats_take_types(llm: LLM) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    assert llm.chat(messages, SAMPLING, guide=Person).parsed.age == 31
    both = llm.chat([messages, messages], SAMPLING, guide=[Person, dict[str, Any]])
    assert [output.parsed for output in both] == [ADA, {"name": "Ada Berg", "age": 31}]
    assert last(llm.chat_stream(messages, SAMPLING, guide=Person)).parsed == ADA


def test_each_sequence_has_its_object(llm: LLM) -> None:
    sampling = SamplingParams(n=3, temperature=5, seed=1, max_tokens=64, on_length="close")
    output = llm.generate(PROMPT, sampling, guide=Person)
    assert len({answer.parsed.name for answer in output.outputs}) > 1
    for answer in output.outputs:
        assert answer.parsed == Person.model_validate_json(answer.text)
    pieces = list(llm.stream(PROMPT, sampling, guide=Person))
    assert pieces[-1].output is not None
    assert [answer.parsed for answer in pieces[-1].output.outputs] == [a.parsed for a in output.outputs]


def test_each_beam_has_its_object(llm: LLM) -> None:
    output = llm.generate(PROMPT, SAMPLING, guide=Person, beam_width=2)
    assert output.parsed == ADA
    assert len(output.outputs) == 2
    for answer in output.outputs:
        if answer.stats.guided_valid:
            assert answer.parsed == Person.model_validate_json(answer.text)
    cut = llm.generate(PROMPT, SamplingParams(max_tokens=3), guide=Person, beam_width=2)
    for answer in cut.outputs:
        with pytest.raises(AnswerError, match="it was cut after 3 tokens"):
            _ = answer.parsed


def test_a_cut_answer_raises_on_access_alone(llm: LLM) -> None:
    samplings = [SamplingParams(max_tokens=4), SAMPLING, SamplingParams(max_tokens=64, stop="Berg")]
    short, whole, stopped = llm.generate([PROMPT] * 3, samplings, guide=Person)
    assert whole.parsed == ADA
    with pytest.raises(AnswerError, match=r'it was cut after 4 tokens; raise .*on_length="close"'):
        _ = short.parsed
    with pytest.raises(AnswerError, match="the stop word 'Berg' ended it; leave it out"):
        _ = stopped.parsed
    closed = llm.generate(PROMPT, SamplingParams(max_tokens=20, on_length="close"), guide=Person)
    assert isinstance(closed.parsed, Person)
    streamed = last(llm.stream(PROMPT, SamplingParams(max_tokens=4), guide=Person))
    with pytest.raises(AnswerError, match="it was cut after 4 tokens"):
        _ = streamed.parsed
    late = llm.generate([PROMPT], SAMPLING, guide=Person, timeout_s=1e-9)[0]
    with pytest.raises(AnswerError, match="its time was over; raise timeout_s"):
        _ = late.parsed


def test_a_number_that_was_cut_is_no_number(llm: LLM) -> None:
    output = llm.generate("1", SamplingParams(max_tokens=2), guide=Annotated[int, Field(ge=10**6)])
    assert output.text.isdigit()
    with pytest.raises(AnswerError, match="it was cut after 2 tokens"):
        _ = output.parsed


def test_a_failed_answer_raises_its_error(llm: LLM) -> None:
    class Twins(BaseModel):
        both: Annotated[set[int], Field(min_length=2)]

    good, failed = llm.generate([PROMPT] * 2, SAMPLING, guide=[Person, Twins])
    assert good.parsed == ADA
    assert isinstance(failed.error, GuideError)
    with pytest.raises(GuideError, match="uniqueItems"):
        _ = failed.parsed
    loose = llm.generate(PROMPT, SAMPLING, guide=Guide.json_schema(Person, strict=False))
    assert loose.parsed == ADA and loose.stats.guided_valid


def test_a_validator_refuses_an_answer(llm: LLM) -> None:
    refused, other = llm.generate([PROMPT] * 2, SAMPLING, guide=[Young, Person])
    assert refused.finish_reason == "stop" and refused.stats.guided_valid
    with pytest.raises(AnswerError, match="not a valid Young: age: Value error, too old"):
        _ = refused.parsed
    assert other.parsed == ADA


@pytest.mark.parametrize("trigger", ["}", "<pad>"])
def test_the_part_behind_a_trigger_is_parsed(llm: LLM, trigger: str) -> None:
    guide = Guide.after(trigger, Annotated[list[Literal["a", "b"]], Field(max_length=2)], max_free_tokens=10)
    output = llm.generate(PROMPT, SamplingParams(max_tokens=100), guide=guide)
    assert isinstance(output.parsed, list) and output.text.endswith("]")
    pieces = list(llm.stream(PROMPT, SamplingParams(max_tokens=100), guide=guide))
    assert pieces[0].partial is None
    assert pieces[-1].partial == output.parsed


def test_a_stream_gives_the_elements_so_far(llm: LLM) -> None:
    person = Person.model_json_schema()
    person["properties"]["name"]["maxLength"] = (
        12  # the prompt has one person, and further ones make weft-tiny babble
    )
    three = {"type": "array", "items": person, "minItems": 3, "maxItems": 3}
    guide = Guide.of(Annotated[list[Person], WithJsonSchema(three)])
    pieces = list(llm.stream(PROMPT, SamplingParams(max_tokens=128), guide=guide))
    output = pieces[-1].output
    assert output is not None and len(output.parsed) == 3
    seen = [piece.partial for piece in pieces]
    assert seen[-1] == output.parsed
    counts = [0 if partial is None else len(partial) for partial in seen]
    assert counts == sorted(counts) and {1, 2, 3} <= set(counts)
    assert all(partial is None or partial == output.parsed[: len(partial)] for partial in seen)
    without = list(llm.stream(PROMPT, SAMPLING, guide=Guide.json()))
    assert all(piece.partial is None and piece.read_partial is None for piece in without)


def test_sequences_of_a_stream_have_their_own_elements(llm: LLM) -> None:
    sampling = SamplingParams(n=2, temperature=1.5, seed=3, max_tokens=48, on_length="close")
    final: dict[int, Any] = {}
    for piece in llm.stream(PROMPT, sampling, guide=list[Person]):
        final[piece.index] = piece.partial
        output = piece.output
    assert output is not None
    assert final == {index: answer.parsed for index, answer in enumerate(output.outputs)}


def test_outputs_and_pieces_can_be_sent_to_another_process(llm: LLM) -> None:
    output = llm.generate(PROMPT, SAMPLING, guide=Person)
    assert pickle.loads(pickle.dumps(output)).parsed == ADA
    pieces = pickle.loads(pickle.dumps(list(llm.stream(PROMPT, SAMPLING, guide=list[Person]))))
    assert pieces[-1].partial == pieces[-1].output.parsed == [ADA]


def test_a_compiled_type_is_the_guide_of_later_requests(llm: LLM) -> None:
    class Fresh(BaseModel):
        name: str
        age: int
        note: Literal["fresh"]

    compiled = llm.compile(Fresh).result()
    assert llm.compile(Guide.of(Fresh)).result() is compiled
    assert llm.generate(PROMPT, SAMPLING, guide=Fresh).parsed.note == "fresh"


def test_threads_may_read_the_same_answer(llm: LLM) -> None:
    output = llm.generate(PROMPT, SAMPLING, guide=Person)
    with ThreadPoolExecutor(4) as pool:
        assert all(value == ADA for value in pool.map(lambda _: output.parsed, range(8)))


def test_a_failed_request_raises_its_own_error() -> None:
    failed = Output([], error=RequestError("it failed"))
    with pytest.raises(RequestError, match="it failed"):
        _ = failed.parsed
