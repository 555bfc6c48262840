"""Tables of implementations that are selected by name. Each maps a name to "module:attribute", which is imported on
first use.

To add a grammar library, kind of guide, drafter or model, add one line here. No other module needs to import it.
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

# Kinds of guides that no grammar library compiles. Each entry is a `function(guide, parts) -> CompiledGuide`, where
# `parts` is a `CompileParts` of `weft.grammar.base`.
GUIDES = {
    "after": "weft.grammar.kinds.after:compile_after",
    "matcher": "weft.grammar.kinds.custom:compile_factory",
    "wasm": "weft.aici.guide:compile_wasm",
    "plugin": "weft.grammar.kinds.custom:compile_plugin",
    "recognizer": "weft.grammar.kinds.custom:compile_recognizer",
}

# Payloads of guides that recordings store, by their key in the recording. Each entry is a `function(data) -> payload`,
# which reads the JSON data of the payload's `to_recording`.
PAYLOADS = {
    "program": "weft.aici.source:from_json",
}

DRAFTERS = {
    "eagle3": "weft.spec.eagle3:Eagle3",
    "mtp": "weft.spec.mtp:Mtp",
    "draft_model": "weft.spec.draft_model:DraftModel",
    "ngram": "weft.spec.proposers:Ngram",
    "forced": "weft.spec.proposers:Forced",
    "given": "weft.spec.proposers:Given",
    "lookahead": "weft.spec.proposers:LookaheadDrafter",
}

MODELS = {
    "LlamaForCausalLM": "weft.models.llama:Llama",
    "MistralForCausalLM": "weft.models.mistral:Mistral",
    "Qwen2ForCausalLM": "weft.models.qwen2:Qwen2",
    "Qwen3ForCausalLM": "weft.models.qwen3:Qwen3",
    "MiMoForCausalLM": "weft.models.mimo:MiMo",
    "MixtralForCausalLM": "weft.models.mixtral:Mixtral",
    "Qwen2MoeForCausalLM": "weft.models.qwen2_moe:Qwen2Moe",
    "Qwen3MoeForCausalLM": "weft.models.qwen3_moe:Qwen3Moe",
    "Qwen3NextForCausalLM": "weft.models.qwen3_next:Qwen3Next",
    "Qwen3_5ForCausalLM": "weft.models.qwen3_5:Qwen35",
    "Qwen3_5ForConditionalGeneration": "weft.models.qwen3_5:Qwen35",
    "Qwen3_5MoeForCausalLM": "weft.models.qwen3_5:Qwen35Moe",
    "Qwen3_5MoeForConditionalGeneration": "weft.models.qwen3_5:Qwen35Moe",
    "GptOssForCausalLM": "weft.models.gpt_oss:GptOss",
    "OlmoeForCausalLM": "weft.models.olmoe:Olmoe",
    "GraniteMoeForCausalLM": "weft.models.granite_moe:GraniteMoe",
    "SmolLM3ForCausalLM": "weft.models.smollm3:SmolLM3",
    "ArceeForCausalLM": "weft.models.arcee:Arcee",
    "Glm4ForCausalLM": "weft.models.glm4:Glm4",
    "GraniteForCausalLM": "weft.models.granite:Granite",
    "Phi3ForCausalLM": "weft.models.phi3:Phi3",
    "Olmo2ForCausalLM": "weft.models.olmo2:Olmo2",
    "Olmo3ForCausalLM": "weft.models.olmo3:Olmo3",
    "GemmaForCausalLM": "weft.models.gemma:Gemma",
    "Gemma2ForCausalLM": "weft.models.gemma2:Gemma2",
    "Gemma3ForCausalLM": "weft.models.gemma3:Gemma3",
    "Gemma3ForConditionalGeneration": "weft.models.gemma3:Gemma3Conditional",
    "DeepseekV2ForCausalLM": "weft.models.deepseek_v2:DeepseekV2",
    "DeepseekV3ForCausalLM": "weft.models.deepseek_v3:DeepseekV3",
    "Glm4MoeLiteForCausalLM": "weft.models.glm4_moe_lite:Glm4MoeLite",
    "MiniCPM3ForCausalLM": "weft.models.minicpm3:MiniCPM3",
    "YoutuForCausalLM": "weft.models.youtu:Youtu",
}

# Ways to run an architecture that is not among MODELS.
GENERIC_MODELS = {
    "transformers": "weft.models.generic.model:TransformersModel",
}

# Files that are models, by their suffix. Each entry is a `function(file) -> directory` that stands for it.
MODEL_FILES = {
    ".gguf": "weft.models.gguf.directory:directory_of",
}

TABLES = {
    "grammars": GRAMMARS,
    "guides": GUIDES,
    "payloads": PAYLOADS,
    "drafters": DRAFTERS,
    "models": MODELS,
    "generic models": GENERIC_MODELS,
    "model files": MODEL_FILES,
}


def names(kind: str) -> list[str]:
    """Return the names in the table `kind` of `TABLES`, in order."""
    return list(TABLES[kind])


def load(kind: str, name: str) -> Any:
    """Import and return the class or function called `name` in the table `kind`. Raises `InputError` for an unknown
    name, with a list of the valid ones."""
    table = TABLES[kind]
    if name not in table:
        raise InputError(f"{name!r} is not one of the {kind}: {', '.join(sorted(table))}")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
