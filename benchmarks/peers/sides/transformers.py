"""transformers and xgrammar: a plain loop over a batch with padding on the left. It runs until the last row ends."""

from __future__ import annotations

import importlib.metadata
import json
import time
from dataclasses import dataclass, field

import torch
import transformers
import xgrammar
from torch import Tensor

from ..protocol import Answer, Answers, Config, Prompt, Request, serve


@dataclass
class Row:
    """A row of the batch: its grammar, its tokens, and the times of the tokens."""

    matcher: xgrammar.GrammarMatcher | None
    tokens: list[int] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    is_whole: bool = False


class Transformers:
    """A model and its tokenizer."""

    def __init__(self, config: Config) -> None:
        self.versions = {
            name: importlib.metadata.version(name) for name in ("transformers", "torch", "xgrammar")
        }
        torch.set_num_threads(config.threads)
        self._batch = config.batch
        dtype = getattr(torch, config.dtype)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(config.model, dtype=dtype).eval()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(config.model)
        self._end = int(self._tokenizer.eos_token_id)
        self._vocab_size = int(self._model.config.vocab_size)
        info = xgrammar.TokenizerInfo.from_huggingface(self._tokenizer, vocab_size=self._vocab_size)
        self._compiler = xgrammar.GrammarCompiler(info)
        self._compiled: dict[str, xgrammar.CompiledGrammar] = {}

    def prepare(self, prompts: list[Prompt]) -> None:
        """Compile the grammars."""
        for prompt in prompts:
            if prompt.schema is not None:
                schema = json.dumps(prompt.schema)
                self._compiled[schema] = self._compiler.compile_json_schema(schema)

    def answer(self, request: Request) -> Answers:
        """Answer one batch after another."""
        rows: list[Row] = []
        begin = time.perf_counter()
        for start in range(0, len(request.prompts), self._batch):
            rows += self._wave(request.prompts[start : start + self._batch], request)
        seconds = time.perf_counter() - begin
        return Answers(seconds, [self._answer(row) for row in rows])

    @torch.inference_mode()
    def _wave(self, prompts: list[Prompt], request: Request) -> list[Row]:
        rows = [Row(self._matcher(prompt)) for prompt in prompts]
        longest = max(len(prompt.ids) for prompt in prompts)
        ids = torch.tensor([[self._end] * (longest - len(p.ids)) + p.ids for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p.ids)) + [1] * len(p.ids) for p in prompts])
        positions, past = (mask.cumsum(-1) - 1).clamp(min=0), None
        while True:
            out = self._model(
                ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=past,
                use_cache=True,
                logits_to_keep=1,
            )
            past = out.past_key_values
            tokens = self._pick(out.logits[:, -1].float(), rows, request)
            if all(row.is_whole or len(row.tokens) == request.max_tokens for row in rows):
                return rows
            ids, positions = tokens[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(ids)], 1)

    def _pick(self, logits: Tensor, rows: list[Row], request: Request) -> Tensor:
        """Pick the next token of each row. The tokens of rows that have ended are ignored."""
        if request.exact:
            logits[:, self._end] = -torch.inf
        if any(row.matcher is not None for row in rows):
            allowed = xgrammar.allocate_token_bitmask(len(rows), self._vocab_size)
            for i, row in enumerate(rows):
                if row.matcher is not None and not row.is_whole:
                    row.matcher.fill_next_token_bitmask(allowed, i)
            xgrammar.apply_token_bitmask_inplace(logits, allowed, vocab_size=self._vocab_size)
        tokens = logits.argmax(-1)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if not row.is_whole and len(row.tokens) < request.max_tokens:
                self._take(row, token)
        return tokens

    def _take(self, row: Row, token: int) -> None:
        row.tokens.append(token)
        row.moments.append(time.perf_counter())
        row.is_whole = token == self._end
        if row.matcher is not None:
            row.matcher.accept_token(token)

    def _matcher(self, prompt: Prompt) -> xgrammar.GrammarMatcher | None:
        if prompt.schema is None:
            return None
        return xgrammar.GrammarMatcher(self._compiled[json.dumps(prompt.schema)])

    def _answer(self, row: Row) -> Answer:
        text = self._tokenizer.decode(row.tokens, skip_special_tokens=True)
        return Answer(len(row.tokens), text, row.moments[-1] - row.moments[0], row.is_whole)


if __name__ == "__main__":
    serve(Transformers)
