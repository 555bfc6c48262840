"""The answers of `weft generate`: printed as they come, and their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from weft.core import Output, SamplingParams
from weft.errors import InputError, RequestError

if TYPE_CHECKING:
    from weft.grammar.guide import Guide
    from weft.llm import LLM
    from weft.prompts import Prompt


@dataclass
class Run:
    """Answers prompts and prints them. What fails comes back with its `error`."""

    llm: LLM
    guide: Guide | None
    chat: bool
    sampling: SamplingParams

    def __call__(self, prompts: list[str]) -> list[Output]:
        inputs: list[Prompt] = [
            self.llm.chat_tokens([{"role": "user", "content": p}]) if self.chat else p for p in prompts
        ]
        if len(inputs) == 1:
            return [self._stream(inputs[0])]
        outputs = self.llm.generate(inputs, guide=self.guide, sampling=self.sampling)
        for number, output in enumerate(outputs, 1):
            if output.error is not None:
                typer.echo(f"weft: prompt {number}: {type(output.error).__name__}: {output.error}", err=True)
            print(output.text)
        return outputs

    def _stream(self, prompt: Prompt) -> Output:
        from weft.text import coloured

        console = Console(highlight=False, soft_wrap=True)
        output = Output(prompt_token_ids=[])  # what came before a failure
        try:
            for piece in self.llm.stream(prompt, guide=self.guide, sampling=self.sampling):
                console.print(
                    coloured(self.llm.tokenizer, piece) if console.is_terminal else piece.text,
                    end="",
                    markup=False,
                )
                output.text += piece.text
                output.token_ids += piece.token_ids
                output.stats.output_tokens += len(piece.token_ids)
                output = piece.output or output
        except (RequestError, InputError) as error:
            if isinstance(error, RequestError) and isinstance(error.output, Output):
                output = error.output
            output.finish_reason, output.error = "error", error
        if output.text or output.error is None:
            console.print()  # a line of its own for what follows
        return output


def statistics(llm: LLM, outputs: list[Output]) -> dict[str, Any]:
    """What `--stats-json` writes. `finish_reason` is a text for one prompt, and for several a list; `logprobs` is None
    where they were not asked for. `program_log` and `program_variables` (values in hexadecimal), lists for several
    prompts alike, are None where the guide is no program. Of several prompts tokens are summed up; `tokens_per_second`
    is over the time from the first start to the last token, `decode_tokens_per_second` of what follows first tokens,
    from the first of these on; `time_to_first_token_s` is the shortest (`OutputStats`). `guide_notes` tell what of the
    guide was not enforced."""
    stats = [output.stats for output in outputs]
    drafted = sum(s.drafted_iterations for s in stats)
    tokens = sum(s.drafted_tokens for s in stats)
    valid = [s.guided_valid for s in stats if s.guided_valid is not None]
    reasons = [output.finish_reason for output in outputs]
    logs = [output.program_log for output in outputs]
    variables = [_in_hex(output.program_variables) for output in outputs]
    return {
        "device": str(llm.runtime.device),
        "model": str(llm.model_path),
        "speculation": llm.speculation.name,
        "num_draft_tokens": llm.speculation.max_draft_tokens,
        "prompt_tokens": sum(s.prompt_tokens for s in stats),
        "output_tokens": sum(s.output_tokens for s in stats),
        "iterations": llm.num_iterations,
        "acceptance_length": tokens / drafted if drafted else 1.0,
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
        "guide_notes": list(next((o.guide_notes for o in outputs if o.guide_notes), ())),
        "finish_reason": reasons[0] if len(reasons) == 1 else reasons,
        "logprobs": [logprobs(o) for o in outputs] if any(o.logprobs is not None for o in outputs) else None,
        "program_log": logs[0] if len(logs) == 1 else logs,
        "program_variables": variables[0] if len(variables) == 1 else variables,
    }


def tokens_per_second(spans: list[tuple[int, float | None, float | None]]) -> float:
    """Tokens over the time from the first beginning to the last end, of answers that have both."""
    whole = [(tokens, begin, end) for tokens, begin, end in spans if begin is not None and end is not None]
    if not whole:
        return 0.0
    seconds = max(end for _, _, end in whole) - min(begin for _, begin, _ in whole)
    return sum(tokens for tokens, _, _ in whole) / seconds if seconds else 0.0


def _in_hex(variables: dict[str, bytes] | None) -> dict[str, str] | None:
    return None if variables is None else {name: value.hex() for name, value in variables.items()}


def logprobs(output: Output) -> list[dict[str, Any]]:
    """Each token of an answer with its log-probability, and those of the likeliest at its place by token id."""
    return [
        {"token_id": token, "logprob": entry.logprob, "top": entry.top}
        for token, entry in zip(output.token_ids, output.logprobs or [], strict=output.logprobs is not None)
    ]
