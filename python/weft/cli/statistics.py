"""The file of `weft generate --stats-json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.cli.inputs import NamedPrompt
from weft.models.config import cache_dtype
from weft.ops.cached import CACHED
from weft.ops.formats import ACTIVATION_DTYPES

if TYPE_CHECKING:
    from weft.core import Output
    from weft.llm import LLM


def statistics(llm: LLM, prompts: Sequence[NamedPrompt], outputs: Sequence[Output]) -> dict[str, Any]:
    """Return the content of the file. Token counts are sums over all answers.

    `tokens_per_second` is over the time from the first admission to the last token. `decode_tokens_per_second` does
    not count first tokens, and its time starts at the earliest of them. `time_to_first_token_s` is the shortest of all
    answers. `guide_notes` lists the parts of the guide that were not enforced. `activation_dtype` and `kv_cache_dtype`
    are those that "auto" stands for. `prompts` lists each prompt with its name and its `outputs`.
    """
    answers = [answer for output in outputs for answer in output.outputs]
    stats = [answer.stats for answer in answers]
    drafted = sum(s.drafted_iterations for s in stats)
    tokens = sum(s.drafted_tokens for s in stats)
    valid = [s.guided_valid for s in stats if s.guided_valid is not None]
    return {
        "device": str(llm.runtime.device),
        "model": str(llm.model_path),
        "speculation": llm.speculation.name,
        "num_draft_tokens": llm.speculation.max_draft_tokens,
        "prompt_tokens": sum(output.stats.prompt_tokens for output in outputs),
        "output_tokens": sum(s.output_tokens for s in stats),
        "iterations": llm.num_iterations,
        "acceptance_length": tokens / drafted if drafted else 1.0,
        **dtypes(llm),
        "graphs": llm.config.graphs,
        "graph_replays": llm.num_graph_replays,
        "proposed_drafts": sum(s.proposed_drafts for s in stats),
        "accepted_drafts": sum(s.accepted_drafts for s in stats),
        "tokens_per_second": tokens_per_second(
            [(s.output_tokens, s.scheduled_at, s.last_token_at) for s in stats]
        ),
        "decode_tokens_per_second": tokens_per_second(
            [(s.output_tokens - 1, s.first_token_at, s.last_token_at) for s in stats]
        ),
        "time_to_first_token_s": min(
            (s.time_to_first_token_s for s in stats if s.first_token_at is not None), default=0.0
        ),
        "guided_valid": all(valid) if valid else None,
        "guide_notes": list(next((a.guide_notes for a in answers if a.guide_notes), ())),
        "prompts": [
            {
                "name": prompt.name,
                "prompt_tokens": output.stats.prompt_tokens,
                "outputs": [of_answer(answer) for answer in output.outputs],
            }
            for prompt, output in zip(prompts, outputs, strict=True)
        ],
    }


def dtypes(llm: LLM) -> dict[str, str]:
    """Return the dtypes of rows that products read, and of cached keys and values, by the names of the options. If
    products differ, `activation_dtype` has several names."""
    config, device = llm.model_config, llm.runtime.device
    cached = cache_dtype(config, device, llm.config.kv_cache_dtype)
    rows = [name for name, rounding in ACTIVATION_DTYPES.items() if rounding in config.roundings]
    return {
        "activation_dtype": " and ".join(rows) or str(config.dtype).removeprefix("torch."),
        "kv_cache_dtype": next(name for name, dtype in CACHED.items() if dtype == cached),
    }


def of_answer(answer: Output) -> dict[str, Any]:
    """Return the entry of an answer. `logprobs` is None unless the request asks for log-probabilities. `program_log`
    and `program_variables` (values in hexadecimal) are None unless the guide is a program."""
    variables = answer.program_variables
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "stopped_by": answer.stopped_by,
        "output_tokens": answer.stats.output_tokens,
        "guided_valid": answer.stats.guided_valid,
        "error": None if answer.error is None else f"{type(answer.error).__name__}: {answer.error}",
        "logprobs": None if answer.logprobs is None else logprobs(answer),
        "program_log": answer.program_log,
        "program_variables": None if variables is None else {name: v.hex() for name, v in variables.items()},
    }


def tokens_per_second(spans: list[tuple[int, float | None, float | None]]) -> float:
    """Return the tokens per second over `spans` of (tokens, begin, end): from the earliest begin to the latest end.
    Spans without a begin or an end do not count."""
    whole = [(tokens, begin, end) for tokens, begin, end in spans if begin is not None and end is not None]
    if not whole:
        return 0.0
    seconds = max(end for _, _, end in whole) - min(begin for _, begin, _ in whole)
    return sum(tokens for tokens, _, _ in whole) / seconds if seconds else 0.0


def logprobs(output: Output) -> list[dict[str, Any]]:
    """Return each token with its log-probability, and the most likely tokens at its position by id."""
    return [
        {"token_id": token, "logprob": entry.logprob, "top": entry.top}
        for token, entry in zip(output.token_ids, output.logprobs or [], strict=output.logprobs is not None)
    ]
