"""The formats of answers by family: their table, and markers that are special tokens of a tokenizer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from weft import load_tokenizer
from weft.grammar import Guide, GuideCompiler, Vocabulary, tool_styles
from weft.parsing import Answer, AnswerParser, Call
from weft.tokenizer.formats import CHANNELS, FORMATS, marker_tokens, reasoning_markers, tool_style_of
from weft.tokenizer.text import RunningText, decode

NAMES = re.compile(r"<\|[^<>|]+\|>|<\uff5c[^<>\uff5c]+\uff5c>|</?(?:think|tool_call)>")
ENDS = {"<|call|>", "<|return|>"}
"""End tokens, which are no text."""
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
HARMONY = """{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}
{#- <|channel|>commentary to=functions.f #}<|start|>assistant"""


def test_the_table_has_every_style() -> None:
    assert {form.tool_style for form in FORMATS} == set(tool_styles())
    page = (Path(__file__).parents[3] / "docs" / "tokenizers.md").read_text()
    assert all(f"`{form.tool_style}`" in page for form in FORMATS)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.tool_style)
def test_the_table_has_the_markers_that_xgrammar_writes(form: Any) -> None:
    tags = [
        Guide.tools(TOOLS, style=form.tool_style, required=required, reasoning=reasoning).source
        for required in (True, False)
        for reasoning in ("enabled", "disabled", "auto")
    ]
    text = "".join(json.dumps(json.loads(tag), ensure_ascii=False) for tag in tags)
    pair = form.reasoning or reasoning_markers(text) or ()
    known = {*form.markers, *(name for marker in pair for name in NAMES.findall(marker)), *ENDS}
    assert set(NAMES.findall(text)) <= known


def save(path: Path, template: str, special: list[str], ends: list[str]) -> dict[str, int]:
    """A byte-level tokenizer in which all markers are special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Backend(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in [*special, *ends]])
    made.save(str(path / "tokenizer.json"))
    ids = {name: made.token_to_id(name) for name in [*special, *ends]}
    settings = {"chat_template": template, "eos_token": ends[0]}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps({"eos_token_id": [ids[name] for name in ends]}))
    return ids


SPECIAL = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|other|>"]


def test_gpt_oss_writes_its_markers_as_special_tokens(tmp_path: Path) -> None:
    ids = save(tmp_path, HARMONY, SPECIAL, ["<|return|>", "<|call|>"])
    tokenizer = load_tokenizer(tmp_path)
    assert tool_style_of(HARMONY) == "harmony" and reasoning_markers(HARMONY) == CHANNELS
    assert tokenizer.marker_ids == {ids[name] for name in SPECIAL[:-1]}
    vocabulary = Vocabulary.from_huggingface(tokenizer, model_path=tmp_path)
    texts = [vocabulary.with_markers.tokens[ids[name]] for name in SPECIAL]
    assert texts == [name.encode() for name in SPECIAL[:-1]] + [b""]
    assert vocabulary.with_markers.tokens[ids["<|call|>"]] == b""
    assert {vocabulary.tokens[ids[name]] for name in SPECIAL} == {b""}
    vocabulary.dump(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json").fingerprint == vocabulary.fingerprint

    analysis = "<|channel|>analysis<|message|>hm<|end|>"
    final = "<|start|>assistant<|channel|>final<|message|>Hi {}"
    call = "<|start|>assistant<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}"
    tokens = tokenizer.encode_chat(analysis + final)
    assert tokens[0] == ids["<|channel|>"] and len(tokens) < len(analysis + final) - 50
    assert decode(tokenizer, [*tokens, ids["<|other|>"], ids["<|return|>"]]) == analysis + final
    running = RunningText(tokenizer)
    for token in tokens:
        running.feed(token)
    assert running.text == analysis + final

    guides = {
        Guide.tools(TOOLS, style="harmony", reasoning="auto"): [analysis + final, analysis + call],
        Guide.tools(TOOLS, style="harmony", reasoning="auto", required=True): [analysis + call],
        Guide.tools(TOOLS, style="harmony", reasoning="auto", required="f", parallel=False): [
            analysis + call
        ],
        Guide.after(CHANNELS[1], Guide.regex("Hi .*")): [analysis + final],
    }
    with GuideCompiler(vocabulary) as compiler:
        for guide, texts in guides.items():
            compiled = compiler.compile(guide)
            for text in texts:
                matcher = compiled.matcher()
                assert all(matcher.accept(token) for token in tokenizer.encode_chat(text)), text
                assert matcher.accept(ids["<|call|>" if text.endswith(call) else "<|return|>"])
                assert matcher.is_terminated()
        for guide in (Guide.json(), Guide.regex(".*")):
            matcher = compiler.compile(guide).matcher()
            assert guide.kind == "regex" or all(map(matcher.accept, tokenizer.encode_chat('{"')))
            assert not matcher.accept(ids["<|channel|>"])
        for guide in list(guides)[1:3]:
            matcher = compiler.compile(guide).matcher()
            assert all(matcher.accept(token) for token in tokenizer.encode_chat(analysis))
            assert not matcher.accept(ids["<|return|>"])


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
            "hm",
            "Hi",
        ),
        ("<|channel|>final<|message|>Hi", "", "Hi"),
        ("<|channel|>analysis<|message|>hm", "hm", ""),
        ("<|channel|>commentary<|message|>Well.<|end|><|start|>assistant", "", "Well."),
        ("Hi", "", "Hi"),
    ],
)
def test_channels_are_read_without_tools(text: str, reasoning: str, content: str) -> None:
    parser = AnswerParser.of_reasoning(*CHANNELS, starts_inside=False)
    assert parser.read(text) == Answer(reasoning, content)


def test_channels_are_read_before_a_guide() -> None:
    for before in ("hm", "<|channel|>analysis<|message|>hm"):
        for end in ("<|end|><|start|>assistant", ""):
            parser = AnswerParser.of_reasoning(*CHANNELS, starts_inside=True)
            assert parser.read(f"{before}{end}<|channel|>final<|message|>{{}}") == Answer("hm", "{}")


def test_other_families_write_their_markers_as_special_tokens(tmp_path: Path) -> None:
    template = (
        "{# <|tool_calls_section_begin|> <|tool_call_argument_begin|> <think> #}{{ messages[0].content }}"
    )
    names = sorted(marker_tokens(template))
    ids = save(tmp_path, template, names, ["<|im_end|>"])
    tokenizer = load_tokenizer(tmp_path)
    vocabulary = Vocabulary.from_huggingface(tokenizer, model_path=tmp_path)
    guide = Guide.tools(TOOLS, reasoning="enabled").of_model(template)
    text = (
        "hm</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    tokens = tokenizer.encode_chat(text)
    assert sum(token in ids.values() for token in tokens) == 6
    with GuideCompiler(vocabulary) as compiler:
        matcher = compiler.compile(guide).matcher()
        assert all(matcher.accept(token) for token in tokens) and matcher.accept(ids["<|im_end|>"])
    found = AnswerParser.of_tools(guide, TOOLS).read(decode(tokenizer, tokens))
    assert found == Answer("hm", "", [Call("f", "{}", is_whole=True)])


def test_a_template_without_formats_has_no_markers() -> None:
    assert marker_tokens("{{ messages[0].content }}") == frozenset() == marker_tokens(None)
    assert marker_tokens("<|channel>thought{{ text }}<channel|>") == {"<|channel>", "<channel|>"}
    assert marker_tokens({"default": "[THINK]{{ thinking }}[/THINK]"}) == {"[THINK]", "[/THINK]"}
