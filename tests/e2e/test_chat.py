"""Conversations: what messages may hold, how they become prompts, and how they are answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from weft import LLM, CapacityError, Guide, InputError, Output, SamplingParams
from weft.executor import Executor
from weft.grammar import Vocabulary

SAMPLING = SamplingParams(max_tokens=12)
ASK = [{"role": "user", "content": "Text: Ada is 31."}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1, "é"]}'}}
TURNS = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "42"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
QWEN = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<go>{% if enable_thinking is false %}<no>{% endif %}{% endif %}"
)
PARTS = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu") as llm:
        yield llm


@pytest.fixture
def templates(llm: LLM) -> Iterator[Any]:
    """Gives the text that a conversation becomes under a template."""
    own = llm.tokenizer.chat_template

    def text(template: str, messages: Any, **options: Any) -> str:
        llm.tokenizer.chat_template = template
        return llm.tokenizer.decode(llm.chat_tokens(messages, **options))

    yield text
    llm.tokenizer.chat_template = own


def test_calls_and_their_results_are_turns(templates: Any) -> None:
    text = templates(QWEN, TURNS, tools=TOOLS)
    assert text == 'f;<user>Text: Ada is 31.<assistant><tool_call>\n{"x": [1, "é"]}<tool>42<go>'


@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("wrapped", [True, False], ids=["tool", "function"])
def test_the_prompt_does_not_say_how_arguments_are_enforced(
    templates: Any, strict: bool | None, wrapped: bool
) -> None:
    """`strict` is a word of the protocol, unless it is the name of an argument."""
    parameters = {"type": "object", "properties": {"strict": {"type": "boolean"}, "none": {"enum": [None]}}}
    function = {"name": "f", "parameters": parameters}
    given = {**function, "strict": strict, "description": None}
    shown, told = (
        ({"type": "function", "function": one} for one in (function, given)) if wrapped else (function, given)
    )
    template = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    text = templates(template, ASK, tools=[told])
    assert json.loads(text) == shown
    assert text == templates(template, ASK, tools=[shown])


def test_arguments_that_are_no_json_stay_texts(templates: Any) -> None:
    broken = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"x'}}]}
    assert templates(QWEN, [*ASK, broken]).endswith('<tool_call>\n"{\\"x"<go>')


def test_parts_are_joined_unless_the_template_reads_them(templates: Any) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    ]
    assert templates(QWEN, messages) == "<user>one\ntwo<go>"
    assert templates(PARTS, messages) == "(one)(two)"


def test_variables_and_the_end_of_a_prompt(templates: Any) -> None:
    assert templates(QWEN, ASK, chat_template_kwargs={"enable_thinking": False}).endswith("<go><no>")
    assert templates(QWEN, ASK, add_generation_prompt=False).endswith("31.")
    begun = [*ASK, {"role": "assistant", "content": "Yes, "}]
    assert templates(QWEN, begun, continue_final_message=True).endswith("<assistant>Yes, ")
    assert templates(QWEN, ASK, chat_template="{{ messages[0].role }}") == "user"


def test_messages_may_be_objects_of_a_client(templates: Any) -> None:
    message = SimpleNamespace(model_dump=lambda: {"role": "assistant", "content": "Hi", "refusal": None})
    assert templates(QWEN, [*ASK, message]).endswith("<assistant>Hi<go>")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages must be a list"),
        ("Hello", "messages must be a list"),
        ([{"role": "user"}], "messages must be a list"),
        ([{"role": "user", "content": None}], 'may be None beside "tool_calls"'),
        ([{"content": "x"}], "messages must be a list"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "part of the type 'image_url'",
        ),
        ([{"role": "assistant", "tool_calls": [{"name": "f"}]}], "a call is"),
        ([{"role": "assistant", "tool_calls": {"function": 1}}], "must be a list of calls"),
    ],
)
def test_what_is_no_conversation_is_an_input_error(llm: LLM, messages: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.chat(messages)


def test_several_conversations_are_answered_together(llm: LLM) -> None:
    conversations = [ASK, [{"role": "user", "content": "Text: Bo is 2."}]]
    together = llm.chat(conversations, SAMPLING)
    apart = [llm.chat(one, SAMPLING) for one in conversations]
    assert [output.token_ids for output in together] == [output.token_ids for output in apart]
    each = llm.chat(
        conversations, [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)], priority=[0.1, 0.9]
    )
    assert [len(output.token_ids) for output in each] == [1, 2]


def test_a_conversation_is_answered_piece_by_piece(llm: LLM) -> None:
    whole = llm.chat(ASK, SAMPLING, guide=Guide.json())
    pieces = list(llm.chat_stream(ASK, SAMPLING, guide=Guide.json()))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert pieces[-1].output is not None and pieces[-1].output.token_ids == whole.token_ids


def test_a_message_is_gone_on_with(llm: LLM) -> None:
    begun = [*ASK, {"role": "assistant", "content": '{"name": "'}]
    prompt = llm.chat_tokens(begun, continue_final_message=True)
    assert llm.tokenizer.decode(prompt).endswith('{"name": "')
    assert (
        llm.chat(begun, SAMPLING, continue_final_message=True).token_ids
        == llm.generate(prompt, SAMPLING).token_ids
    )


def test_parameters_that_are_elsewhere_are_said_to_be_there(llm: LLM) -> None:
    for call, hint in (
        (lambda: llm.generate("x", max_tokens=5), r"sampling=SamplingParams\(max_tokens=...\)"),
        (lambda: llm.generate("x", max_new_tokens=5), "it is called max_tokens"),
        (lambda: llm.generate("x", sampling_params=SAMPLING), "it is called sampling"),
        (lambda: llm.generate("x", priorty=1), "did you mean priority?"),
        (lambda: llm.generate("x", nothing=1), "there are sampling, guide, priority"),
        (lambda: llm.generate("x", guid=int), "did you mean guide?"),
        (lambda: llm.generate("x", response_format=int), "give a guide: generate"),
        (lambda: llm.generate("x", schema={}), r"guide=Guide.json_schema"),
        (lambda: llm.chat(ASK, enable_thinking=False), "chat_template_kwargs"),
        (lambda: SamplingParams(max_token=1), "has no parameter 'max_token'; did you mean max_tokens?"),
        (lambda: SamplingParams(guided_json={}), "give a guide: generate"),
    ):
        with pytest.raises(TypeError, match=hint):
            call()


def test_what_is_printed_fits_a_screen(llm: LLM) -> None:
    output = llm.generate("Text: x", SamplingParams(max_tokens=200, min_tokens=200))
    assert (
        len(repr(output)) < 400 and "200 tokens" in repr(output) and "finish_reason='length'" in repr(output)
    )
    assert "error=CapacityError('no room')" in repr(Output([], error=CapacityError("no room")))
    assert "and 1 others" in repr(llm.generate("x", SamplingParams(max_tokens=1, n=2)))
    vocabulary = llm.client.built.text.vocabulary
    assert isinstance(vocabulary, Vocabulary) and len(repr(vocabulary)) < 100
    assert len(repr(llm.tokenizer)) < 100 and len(repr(llm.client.built.text)) < 400
    assert llm.model_config.hidden_size > 0


def test_an_executor_of_guides_has_its_libraries_before_the_first() -> None:
    from weft.executor import ExecutorConfig, GuidedDecodingConfig

    with Executor(
        None, ExecutorConfig(guided_decoding_config=GuidedDecodingConfig()), device="cpu"
    ) as executor:
        backend = executor.client.compiler._backend  # type: ignore[union-attr]
        assert set(backend.libraries._made) == {"xgrammar", "llguidance"}  # type: ignore[attr-defined]
