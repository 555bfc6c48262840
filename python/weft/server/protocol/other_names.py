"""Maps field names of other APIs, of other libraries, or of other routes of this server to this route's fields. An
error about such a name suggests the field to use."""

from __future__ import annotations

from weft.core.names import GUIDE_NAMES, SAMPLING_NAMES

# -- names of a body's fields

_KINDS = ("json_schema", "json_object", "regex", "choice", "ebnf", "lark", "structural_tag")

GUIDES = {
    **{other: f"guide.{kind}" for other, kind in (*GUIDE_NAMES.items(), *zip(_KINDS, _KINDS, strict=True))},
    "guided_decoding": "guide",
    "guided_options": "guide",
}
SAMPLING = {**GUIDES, **SAMPLING_NAMES, "format": "response_format", "do_sample": "temperature"}
CHAT = {
    **{other: name for other, name in SAMPLING.items() if other != "max_completion_tokens"},
    "input": "messages",
    "prompt": "messages",
    "enable_thinking": "chat_template_kwargs.enable_thinking",
}
COMPLETIONS = {**SAMPLING, "messages": "prompt", "input": "prompt"}
# This route has no `n`, and calls `max_tokens` max_output_tokens.
RESPONSES = {
    **{other: name for other, name in SAMPLING.items() if name not in ("n", "max_tokens")},
    **{
        other: "max_output_tokens"
        for other, name in {**SAMPLING, "max_tokens": "max_tokens"}.items()
        if name == "max_tokens" and other != "max_output_tokens"
    },
    "messages": "input",
    "format": "text.format",
    "json_schema": "text.format",
    "schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "system": "instructions",
    "system_prompt": "instructions",
    "enable_thinking": "chat_template_kwargs.enable_thinking",
}
COUNT_TOKENS = {
    "format": "output_config.format",
    "json_schema": "output_config.format",
    "response_format": "output_config.format",
    "effort": "output_config.effort",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "enable_thinking": "chat_template_kwargs.enable_thinking",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "system_prompt": "system",
    "instructions": "system",
    "input": "messages",
    "prompt": "messages",
}
# This route has no `n`, and calls `stop` stop_sequences.
MESSAGES = {
    **{other: name for other, name in SAMPLING.items() if name not in ("n", "stop", "response_format")},
    **{other: name for other, name in COUNT_TOKENS.items() if other != "response_format"},
    "max_tokens_to_sample": "max_tokens",
    "stop_words": "stop_sequences",
    "stop_strings": "stop_sequences",
}
TOKENIZE = {"input": "prompt", "text": "prompt", "content": "prompt"}
DETOKENIZE = {"ids": "tokens", "token_ids": "tokens", "input_ids": "tokens", "prompt": "tokens"}

# -- names of a field's members

GUIDE = GUIDE_NAMES
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
