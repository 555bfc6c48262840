"""What came of a request: its responses, by the rules that they follow, against the reference's answer."""

from __future__ import annotations

import re

import pytest

from support.soak.pool import Pool, finish_reason
from support.soak.workload import Errand
from weft.core import Output, TokenLogprob
from weft.executor import FinishReason, Response, Result

NOT_FINISHED = FinishReason.NOT_FINISHED


class Account:
    """Takes the responses of one request in their order, and says at the end whether they are right."""

    def __init__(self, errand: Errand, pool: Pool, request_id: int) -> None:
        self.errand = errand
        self.request_id = request_id
        self.num_responses = 0
        self.is_over = False
        self.is_left = False  # whoever asked went away
        self.error: str | None = None
        self.tokens: list[list[int]] = [[] for _ in range(errand.num_sequences)]
        self.log_probs: list[list[float]] = [[] for _ in self.tokens]
        self.reasons = [NOT_FINISHED for _ in self.tokens]
        self._pool = pool

    def __repr__(self) -> str:
        case = self.errand.case
        return f"request {self.request_id} ({self.errand.fate}) of case {case.number}"

    def feed(self, response: Response) -> None:
        """Take the next response."""
        request, self.num_responses = self.errand.request, self.num_responses + 1
        assert not self.is_over, f"{self}: a response behind the last one: {response}"
        assert (response.request_id, response.client_id) == (self.request_id, request.client_id)
        if response.has_error():
            self.error, self.is_over = response.error_msg, True
            return
        result = response.result
        index, wanted = result.sequence_index, request.output_config
        (tokens,), (reason,) = result.output_token_ids, result.finish_reasons
        assert self.reasons[index] is NOT_FINISHED, f"{self}: sequence {index} goes on after its end"
        assert result.is_sequence_final == (reason is not NOT_FINISHED)
        assert request.streaming or result.is_sequence_final
        if not (request.streaming or wanted.exclude_input_from_output):
            prompt = list(request.input_token_ids)
            assert tokens[: len(prompt)] == prompt
            tokens = tokens[len(prompt) :]
        is_delta = request.streaming and not request.return_all_generated_tokens
        num_before = len(self.tokens[index]) if is_delta else 0
        if not is_delta:
            assert tokens[: len(self.tokens[index])] == self.tokens[index]
        self.tokens[index] = [*(self.tokens[index] if is_delta else []), *tokens]
        assert (result.log_probs is not None) == wanted.return_log_probs
        if result.log_probs is not None:
            (log_probs,) = result.log_probs
            self.log_probs[index] = log_probs
            assert len(log_probs) == len(self.tokens[index])
            if reason is not FinishReason.END_ID:  # the end token counts, too
                assert result.cum_log_probs == pytest.approx([sum(log_probs)])
        assert (result.top_log_probs is not None) == bool(wanted.top_log_probs)
        self._check_logits(result, len(self.tokens[index]) - num_before)
        assert (result.request_perf_metrics is not None) == wanted.return_perf_metrics
        self.reasons[index] = reason
        self.is_over = result.is_final
        assert result.is_final == all(reason is not NOT_FINISHED for reason in self.reasons)

    def _check_logits(self, result: Result, num_new: int) -> None:
        request, size = self.errand.request, self._pool.vocab_size
        wanted = request.output_config
        logits = result.generation_logits
        shape = (num_new, 1, size) if request.streaming else (1, num_new, size)
        assert logits is None or (wanted.return_generation_logits and logits.shape == shape)
        assert logits is not None or not (wanted.return_generation_logits and num_new)
        if result.context_logits is not None:
            assert wanted.return_context_logits
            assert result.context_logits.shape == (len(request.input_token_ids), size)

    def check(self) -> None:
        """It has come to the end that it should have come to, with the reference's tokens."""
        errand, answers = self.errand, self._answers()
        assert self.is_over or self.is_left, f"{self} has not ended"
        if errand.fate == "invalid":
            assert self.error is not None and re.search(errand.error, self.error), f"{self}: {self.error}"
            return
        is_same = all(
            self._pool.compare(errand.case, index, tokens, f"{self}, sequence {index}")
            for index, tokens in enumerate(self.tokens)
        )
        if not is_same or self.is_left:
            return
        may_fail = any(answer.error is not None for answer in answers)
        assert self.error is None or may_fail, f"{self}: {self.error}"
        if self.error is not None:
            return
        early = {"cancelled": FinishReason.CANCELLED, "timed out": FinishReason.TIMED_OUT}.get(errand.fate)
        for reason, tokens, logs, answer in zip(
            self.reasons, self.tokens, self.log_probs, answers, strict=True
        ):
            assert answer.logprobs is not None
            self._check_log_probs(logs, answer.logprobs)
            if reason is not early:
                assert answer.error is None, f"{self} is answered; the reference has {answer.error}"
                assert (reason, tokens) == self._expected(answer), str(self)

    def _expected(self, answer: Output) -> tuple[FinishReason, list[int]]:
        """How an executor gives an answer out: without its end token, and no further than the drafts that the request
        brought along are right, and one token more."""
        reason, tokens = finish_reason(answer), answer.token_ids
        given = self.errand.request.external_draft_tokens_config
        if given is not None:
            drafts = given.tokens
            right = next(
                (i for i, pair in enumerate(zip(tokens, drafts, strict=False)) if pair[0] != pair[1]), None
            )
            right = min(len(tokens), len(drafts)) if right is None else right
            if right + 1 < len(tokens):
                return FinishReason.LENGTH, tokens[: right + 1]
        return reason, tokens[:-1] if reason is FinishReason.END_ID else tokens

    def _answers(self) -> list[Output]:
        return [self._pool.answer(self.errand.case, index) for index in range(self.errand.num_sequences)]

    def _check_log_probs(self, got: list[float], expected: list[TokenLogprob]) -> None:
        for value, entry in zip(got, expected, strict=False):
            assert value == pytest.approx(entry.logprob, abs=2e-3), f"{self}: {got} instead of {expected}"
