"""The pages docs/adding-a-*.md: their parts work when added as the page says, and their excerpts are current."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers

from contracts.test_models import SIZES
from support.grammar.grammars import small_vocabulary
from weft import LLM, EngineConfig, Guide, GuideError, SamplingParams, Speculation, registry
from weft.grammar import GuideCompiler
from weft.models.base import PagedKV
from weft.models.loading import load_model
from weft.ops.attention import Rows

DOCS = Path(__file__).parents[2] / "docs"


def add(page: str, table: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Do what a page says; the name of what it adds."""
    file, line = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[:2]
    found = re.fullmatch(r'\s*"(\w+)": "([\w.]+):(\w+)",\s*', line)
    assert found is not None, line
    name, module, attribute = found.groups()
    made = ModuleType(module)
    monkeypatch.setitem(sys.modules, module, made)  # dataclasses look for it there
    exec(compile(file, page, "exec"), made.__dict__)
    monkeypatch.setitem(table, name, f"{module}:{attribute}")
    return name


def unindented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def test_the_page_on_sampling_parameters_quotes_the_files() -> None:
    page = (DOCS / "adding-a-sampling-parameter.md").read_text()
    quotes = re.findall(
        r"^In `([\w/.]+)`.*?:\n\n(?:<!--.*?-->\n)?```\w+\n(.*?)```", page, re.MULTILINE | re.DOTALL
    )
    assert len({file for file, _ in quotes}) == 5
    for file, quote in quotes:
        assert unindented(quote) in unindented((DOCS.parent / file).read_text()), (file, quote)


def test_a_drafter_is_a_file_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    name = add("adding-a-drafter.md", registry.DRAFTERS, monkeypatch)
    sampling = SamplingParams(max_tokens=24, temperature=1.0, seed=5)
    guide, engine = Guide.regex("(ab|a)*c"), EngineConfig(max_batch=2)
    answers = []
    for speculation in (Speculation.none(), Speculation.named(name, num_draft_tokens=4)):
        with LLM(device="cpu", speculation=speculation, engine=engine) as llm:
            answers.append(
                [o.token_ids for o in llm.generate(["a", "b"], guide=[None, guide], sampling=sampling)]
            )
    assert answers[0] == answers[1]


def test_a_grammar_library_is_a_file_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    name = add("adding-a-grammar.md", registry.GRAMMARS, monkeypatch)
    with GuideCompiler(small_vocabulary(), backend=name) as compiler:
        compiled = compiler.compile(Guide.choice(["abc", "é"]))
        assert compiled.backend == name
        assert compiled.matcher().validate([3 + byte for byte in b"abcx"]) == 3
        with pytest.raises(GuideError, match="choices only"):
            compiler.compile(Guide.regex("a"))
    assert EngineConfig(grammar=name).grammar == name


def test_a_model_is_a_file_and_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    architecture = add("adding-a-model.md", registry.MODELS, monkeypatch)
    oracle_class = getattr(transformers, architecture)
    torch.manual_seed(1)
    oracle = oracle_class(oracle_class.config_class(**SIZES)).eval()
    oracle.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [architecture]
    model, tokens = load_model(tmp_path), torch.randint(0, SIZES["vocab_size"], (2, 16))
    rows = Rows(torch.arange(1, 9).view(2, 4).int(), torch.zeros(2, dtype=torch.int64), 16)
    with torch.inference_mode():
        hidden = model.forward(tokens, PagedKV.for_model(model, 9, 4), rows)
        torch.testing.assert_close(model.logits(hidden.last), oracle(tokens).logits, atol=1e-4, rtol=1e-4)
