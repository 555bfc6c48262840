"""Text that a program writes anew: where it takes back what was just sampled, or puts tokens of its own.

A matcher may take a token and change the end of the text (`splice` of `csrc/include/weft/matcher.h`). The device
knows nothing of that: whatever is in flight for the request after that token is dropped, and the request reads its
text again before it goes on, as one that was preempted does.
"""

from __future__ import annotations

from weft.core import SPLICED, FinishReason, TokenLogprob
from weft.core.request import NOTHING
from weft.engine.device.results import StepResults
from weft.engine.output.commit import DraftedBy, commit, cut
from weft.engine.sequence import Sequence
from weft.errors import GuideStateError
from weft.guided.state import Edit

MAX_BARREN = 256
"""So often in a row a program may take back a token and put none; then it is not taken to come to an end."""


def commit_splice(
    sequence: Sequence,
    results: StepResults,
    splice: Edit,
    end_tokens: frozenset[int],
    drafted_by: DraftedBy,
) -> FinishReason | None:
    """Append the iteration's tokens up to the splice, and what the program put; why the answer ends, if it does. Where
    it does not, the request is to be read again. Raises `GuideStateError` for what ends it."""
    output, guide = sequence.output, sequence.guide
    assert guide is not None
    num_sampled = splice.committed - (len(output.token_ids) - sequence.resumed_at) - splice.drop
    if num_sampled:
        reason = commit(sequence, results.beginning(sequence.slot, num_sampled), end_tokens, None, drafted_by)
        if reason is not None:
            return reason
    guide.num_barren = 0 if num_sampled or splice.append else guide.num_barren + 1
    if guide.num_barren > MAX_BARREN:
        raise GuideStateError(
            f"the program took back {MAX_BARREN} tokens in a row and put none in their place; it should forbid what "
            "it takes back"
        )
    taken = results.tokens(sequence.slot)[num_sampled : num_sampled + splice.drop]
    guide.splices.append((len(output.token_ids), tuple(taken), len(splice.append)))
    return put(sequence, splice.append, end_tokens)


def put(sequence: Sequence, tokens: list[int], end_tokens: frozenset[int]) -> FinishReason | None:
    """Append tokens that nobody sampled. Their log-probability is 0, and nothing else is likely in their place."""
    output = sequence.output
    if sequence.request.gather is not NOTHING and tokens:
        raise GuideStateError(
            "the program puts tokens of its own, of which the model has no logits or other tensors; ask for none"
        )
    kept, reason = cut(sequence, tokens, end_tokens)
    output.token_ids += kept
    output.origins += [SPLICED] * len(kept)
    if output.logprobs is not None:
        output.logprobs += [TokenLogprob(0.0, {}) for _ in kept]
    return reason
