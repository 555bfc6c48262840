"""What fields are called elsewhere: by other APIs, servers and libraries, or by another route of this one. The error of
a request that has such a name tells weft's."""

from __future__ import annotations

GUIDES = {
    "json_schema": "guide.json_schema",
    "schema": "guide.json_schema",
    "json": "guide.json_schema",
    "json_object": "guide.json_object",
    "regex": "guide.regex",
    "choice": "guide.choice",
    "choices": "guide.choice",
    "grammar": "guide.ebnf",
    "ebnf": "guide.ebnf",
    "gbnf": "guide.ebnf",
    "lark": "guide.lark",
    "structural_tag": "guide.structural_tag",
    "guided_decoding": "guide",
    "guided_options": "guide",
}
"""SGLang's, llama.cpp's, and what is natural to try."""

SAMPLING = {
    **GUIDES,
    "format": "response_format",
    "do_sample": "temperature",
    "random_seed": "seed",
    "stop_words": "stop",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "repeat_penalty": "repetition_penalty",
    "num_return_sequences": "n",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_length": "max_tokens",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
}
"""transformers', Anthropic's, Ollama's and llama.cpp's."""

CHAT = {
    **SAMPLING,
    "input": "messages",
    "prompt": "messages",
    "enable_thinking": "chat_template_kwargs.enable_thinking",
}
COMPLETIONS = {
    **SAMPLING,
    "messages": "prompt",
    "input": "prompt",
    "max_completion_tokens": "max_tokens",
}
RESPONSES = {
    **{name: own for name, own in SAMPLING.items() if own not in ("n", "max_tokens")},
    **{name: "max_output_tokens" for name, own in SAMPLING.items() if own == "max_tokens"},
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "format": "text.format",
    "json_schema": "text.format",
    "schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "system": "instructions",
    "system_prompt": "instructions",
    "enable_thinking": "chat_template_kwargs.enable_thinking",
}
RESPONSES.pop("max_output_tokens")

TOKENIZE = {"input": "prompt", "text": "prompt", "content": "prompt"}
DETOKENIZE = {"ids": "tokens", "token_ids": "tokens", "input_ids": "tokens", "prompt": "tokens"}

GUIDE = {
    "json": "json_schema",
    "schema": "json_schema",
    "pattern": "regex",
    "grammar": "ebnf",
    "gbnf": "ebnf",
    "enum": "choice",
    "program": "wasm",
}
"""Those below are of members of a field."""
STRUCTURED_OUTPUTS = {
    "json_schema": "json",
    "schema": "json",
    "pattern": "regex",
    "ebnf": "grammar",
    "lark": "grammar",
}
RESPONSE_FORMAT = {
    "schema": "json_schema.schema",
    "name": "json_schema.name",
    "strict": "json_schema.strict",
    "description": "json_schema.description",
}
JSON_SCHEMA_FORMAT = {"json_schema": "schema", "parameters": "schema"}
