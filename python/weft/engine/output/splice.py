"""Text that a program writes anew: where it takes back what was just sampled, or puts tokens of its own.

A matcher may take a token and change the end of the text (`splice` of `csrc/include/weft/matcher.h`). The device
knows nothing of that: whatever is in flight for the request behind that token is dropped, and the request reads its
text again before it goes on, as one that was preempted does.
"""

from __future__ import annotations

from weft.core import FinishReason, TokenLogprob
from weft.engine.device.results import StepResults
from weft.engine.device.tensors import NOTHING
from weft.engine.output.commit import commit, cut
from weft.engine.request import Request
from weft.errors import RequestError
from weft.guided.state import Splice

MAX_BARREN = 256
"""So often in a row a program may take back a token and put none; then it is not taken to come to an end."""


def commit_splice(
    request: Request, results: StepResults, splice: Splice, end_tokens: frozenset[int]
) -> FinishReason | None:
    """Append the iteration's tokens up to the splice, and what the program put; why the answer ends, if it does.

    Otherwise the request waits to be read again (`is_rewritten`). Raises `RequestError` for what ends it.
    """
    output = request.output
    num_sampled = splice.committed - (len(output.token_ids) - request.resumed_at) - splice.backtrack
    if num_sampled:
        reason = commit(
            request, Beginning(results, request.slot, num_sampled), request.room, end_tokens, None
        )
        if reason is not None:
            return reason
    request.num_barren = 0 if num_sampled or splice.tokens else request.num_barren + 1
    if request.num_barren > MAX_BARREN:
        raise RequestError(
            f"the program took back {MAX_BARREN} tokens in a row and put none in their place; it should forbid what "
            "it takes back"
        )
    request.is_rewritten = True
    taken = results.tokens(request.slot)[num_sampled : num_sampled + splice.backtrack]
    request.splices.append((len(output.token_ids), tuple(taken), len(splice.tokens)))
    return put(request, splice.tokens, end_tokens)


def put(request: Request, tokens: list[int], end_tokens: frozenset[int]) -> FinishReason | None:
    """Append tokens that nobody sampled. Their log-probability is 0, and nothing else is likely in their place."""
    output = request.output
    if request.gather is not NOTHING and tokens:
        raise RequestError(
            "the program puts tokens of its own, of which the model has no logits or other tensors; ask for none"
        )
    kept, reason = cut(request, tokens, request.room, end_tokens)
    output.token_ids += kept
    output.drafted += [False] * len(kept)
    if output.logprobs is not None:
        output.logprobs += [TokenLogprob(0.0, {}) for _ in kept]
    return reason


class Beginning(StepResults):
    """An iteration's results as if one slot had committed its first `count` tokens only, with no draft after them."""

    def __init__(self, results: StepResults, slot: int, count: int) -> None:
        super().__init__(results._received, results._extra, results._gathered)
        self._tokens = results.tokens(slot)[:count]
        self._accepted = min(results.count(slot), count)
        self._num_proposed = min(results.proposed(slot), count)
        self._logprobs, self._ids = results._logprobs, results._ids

    def count(self, slot: int) -> int:
        return self._accepted

    def proposed(self, slot: int) -> int:
        return self._num_proposed

    def tokens(self, slot: int) -> list[int]:
        return self._tokens
