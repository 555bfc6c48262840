"""What can be chosen by name: `name -> "module:Class"` for each kind, imported on use. Adding one is one line
here.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.errors import InputError

GRAMMARS = {
    "auto": "weft.grammar.auto:AutoBackend",
    "xgrammar": "weft.grammar.xgrammar.backend:XGrammarBackend",
    "llguidance": "weft.grammar.llguidance.backend:LLGuidanceBackend",
}

# Kinds of guides that no grammar library compiles: `function(guide, parts) -> CompiledGuide` for each, with the
# `CompileParts` of `weft.grammar.base`.
GUIDES = {
    "after": "weft.grammar.kinds.after:compile_after",
    "matcher": "weft.grammar.factory:compile_factory",
    "wasm": "weft.grammar.wasm.guide:compile_wasm",
    "plugin": "weft.grammar.kinds.plugin:compile_plugin",
    "recognizer": "weft.grammar.kinds.recognizer:compile_recognizer",
}

DRAFTERS = {
    "eagle3": "weft.spec.eagle3:Eagle3",
    "mtp": "weft.spec.mtp:Mtp",
    "draft_model": "weft.spec.draft_model:DraftModel",
    "ngram": "weft.spec.ngram:Ngram",
    "forced": "weft.spec.forced:Forced",
    "given": "weft.spec.given:Given",
}

MODELS = {
    "LlamaForCausalLM": "weft.models.llama:Llama",
    "MistralForCausalLM": "weft.models.llama:Llama",
    "Qwen2ForCausalLM": "weft.models.llama:Llama",
    "Qwen3ForCausalLM": "weft.models.llama:Llama",
    "MiMoForCausalLM": "weft.models.llama:Llama",
}

TABLES = {"grammars": GRAMMARS, "guides": GUIDES, "drafters": DRAFTERS, "models": MODELS}


def names(kind: str) -> list[str]:
    """The names of one kind ("grammars", "guides", "drafters" or "models"), in order."""
    return list(TABLES[kind])


def load(kind: str, name: str) -> Any:
    """The class called `name`. Raises `InputError`, naming the valid ones."""
    table = TABLES[kind]
    if name not in table:
        raise InputError(f"{name!r} is not one of the {kind}: {', '.join(sorted(table))}")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
