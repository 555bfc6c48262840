"""Tool calls and structural tags through the engine: what comes out parses."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import jsonschema
import pytest

from support.grammar.tool_guides import GUIDES, PERSON, TOOLS
from weft import LLM, EngineConfig, Output, SamplingParams

PROMPTS = ["Text: Ada is a painter. Age 31.\nSchema: ", "Text: Bo.\nSchema: "]


@pytest.fixture(scope="module")
def plain() -> list[Output]:
    engine = EngineConfig(max_batch=4, max_seq_len=256)
    prompts = [prompt for prompt in PROMPTS for _ in GUIDES]
    with LLM(device="cpu", engine=engine) as llm:
        outputs = llm.generate(
            prompts, guide=[*GUIDES, *GUIDES], sampling=SamplingParams(max_tokens=100, seed=3)
        )
    assert not any(output.error for output in outputs)
    return outputs


def test_what_comes_out_parses(plain: list[Output]) -> None:
    for named, required, _, tagged in (plain[:4], plain[4:]):
        call = json.loads(named.text)
        assert call["name"] == "person"
        jsonschema.validate(call["parameters"], PERSON)
        calls = re.findall(r"<tool_call>\n(.*?)\n</tool_call>", required.text, re.DOTALL)
        assert calls
        for each in calls:
            jsonschema.validate(json.loads(each)["arguments"], PERSON)
        objects = re.findall(r'\{"[^"]*"?', tagged.text)
        assert objects and {*objects} <= {'{"one"', '{"two"'}


def test_a_chat_template_is_told_of_tools() -> None:
    with LLM(device="cpu") as llm:
        names = "{% for tool in tools or [] %}Tool: {{ tool.function.name }}\n{% endfor %}"
        llm.tokenizer.chat_template = names + "{{ messages[0].content }}"
        ask = [{"role": "user", "content": "Hello"}]
        assert llm.tokenizer.decode(llm.chat_tokens(ask, tools=TOOLS)) == "Tool: person\nHello"
        assert llm.tokenizer.decode(llm.chat_tokens(ask)) == "Hello"


def test_the_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["tool_calls.py", "--device", "cpu"])
    runpy.run_path(str(Path(__file__).parents[3] / "examples" / "tool_calls.py"), run_name="__main__")
    assert re.search(r"\n[A-Z][a-z]+, \d+: a painter\n$", capsys.readouterr().out)
