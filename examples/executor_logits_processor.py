"""A logits post-processor: your own function, which changes the model's logits before sampling.

The function gets the raw logits of one position, [1, 1, vocabulary], on the device, and the text before that position.
It may write into the logits, or return new ones. It works with guides (the grammar has the last word) and with drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft import Speculation, load_tokenizer, package_model_path
from weft.executor import (
    Executor,
    ExecutorConfig,
    LogitsPostProcessorConfig,
    OutputConfig,
    Request,
)


def never_twice(
    request_id: int, logits: Tensor, tokens: list[list[int]], stream: object, client_id: int | None
) -> None:
    """Forbid the last token."""
    logits[..., tokens[0][-1]] = -torch.inf


PROMPT = 'Text: Call 4455667788.\nSchema: {"phone": string}\nJSON: '

config = ExecutorConfig(
    logits_post_processor_config=LogitsPostProcessorConfig({"never twice": never_twice}),
    speculation=Speculation.eagle3(num_draft_tokens=3),
)
with Executor(None, config) as executor:
    for name in (None, "never twice"):
        request = Request(
            load_tokenizer(package_model_path()).encode(PROMPT),
            max_tokens=12,
            output_config=OutputConfig(exclude_input_from_output=True),
            logits_post_processor_name=name,
        )
        result = executor.await_responses(executor.enqueue_request(request))[0].result
        tokens = result.output_token_ids[0]
        repeats = sum(tokens[i] == tokens[i - 1] for i in range(1, len(tokens)))
        print(f"{name or 'as it is'}: {tokens}, {repeats} repeated")
