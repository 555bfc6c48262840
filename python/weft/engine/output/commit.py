"""What becomes of the tokens that an iteration committed: which of them are the answer's, and whether it ends."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable

from weft.core import SAMPLED, SPLICED, FinishReason, OutputStats, TokenLogprob
from weft.core.request import NOTHING
from weft.engine.device.results import StepResults
from weft.engine.sequence import Sequence
from weft.errors import DeadEndError, GuideStateError, RequestError
from weft.guided.state import Edit, GuidedState

DraftedBy = Callable[[Sequence, int], abc.Sequence[str]]
"""The drafters of so many tokens of a request, that come next in its answer."""

MAX_EMPTY_EDITS = 256
"""A matcher that drops this many tokens in a row, and appends none, ends its request: it may never come to an end."""


def commit(
    sequence: Sequence,
    results: StepResults,
    end_tokens: frozenset[int],
    grammar: GuidedState | None,
    drafted_by: DraftedBy,
) -> FinishReason | None:
    """Append the iteration's tokens to the request's answer; why it ends, if it does.

    `grammar` is the state that guides the request, if any; `drafted_by` names who drafted. Raises `RequestError` for
    what ends the request; nothing of the iteration is given out then.
    """
    # An edit parks its slot as a failure does.
    if grammar is not None and grammar.num_failed and (edit := _edit_of(sequence, results, grammar)):
        reason = _commit_edit(sequence, results, edit, end_tokens, drafted_by)
        sequence.must_reread = True  # also at the answer's end: its pages don't hold the appended tokens
        return reason
    slot = sequence.slot
    output = sequence.output
    if sequence.processor is not None:
        sequence.processor.check()
    count, tokens = results.count(slot), results.tokens(slot)
    drawn = next((i for i, token in enumerate(tokens) if token < 0), len(tokens))
    kept, reason = cut(sequence, tokens[:drawn], end_tokens)
    if drawn < len(tokens) and reason is None:
        raise nothing_left(sequence, grammar)
    if grammar is not None:
        check_grammar(sequence, grammar, len(kept), is_last=reason is not None)
    num_drafted = min(count, len(kept))
    output.origins += drafted_by(sequence, num_drafted)
    output.origins += [SAMPLED] * (len(kept) - num_drafted)
    output.token_ids += kept
    proposed = results.proposed(slot)
    if proposed:  # after the answer's end there is nothing that a draft could be held against
        reached = proposed if reason is None else min(proposed, len(kept))
        count_drafts(output.stats, reached, num_drafted, len(kept))
    if output.logprobs is not None:
        output.logprobs += results.logprobs(slot, len(kept), sequence.request.sampling.logprobs or 0)
    if sequence.request.gather is not NOTHING:
        sequence.gathered.add(output, results.outputs(slot, sequence.request.gather, len(kept)))
    return reason


def _edit_of(sequence: Sequence, results: StepResults, grammar: GuidedState) -> Edit | None:
    """The edit of the text that the matcher asked for in this iteration, if it did. With another iteration in flight,
    the edit may be that one's."""
    edit = grammar.edit(sequence.slot)
    before = len(sequence.output.token_ids) - sequence.resumed_at
    return edit if edit and edit.committed <= before + results.count(sequence.slot) + 1 else None


def _commit_edit(
    sequence: Sequence, results: StepResults, edit: Edit, end_tokens: frozenset[int], drafted_by: DraftedBy
) -> FinishReason | None:
    """Append the iteration's tokens up to those that the edit drops, then the tokens that it appends; why the answer
    ends, if it does. The device knows nothing of this: later tokens in flight are void, and the sequence must read
    its text again, like a preempted one. Raises `GuideStateError` for an edit that ends the request."""
    output, guide = sequence.output, sequence.guide
    assert guide is not None
    num_sampled = edit.committed - (len(output.token_ids) - sequence.resumed_at) - edit.drop
    if num_sampled:
        reason = commit(sequence, results.beginning(sequence.slot, num_sampled), end_tokens, None, drafted_by)
        if reason is not None:
            return reason
    guide.num_empty_edits = 0 if num_sampled or edit.append else guide.num_empty_edits + 1
    if guide.num_empty_edits > MAX_EMPTY_EDITS:
        raise GuideStateError(
            f"the guide dropped {MAX_EMPTY_EDITS} tokens in a row and appended none; it should forbid these tokens"
        )
    dropped = results.tokens(sequence.slot)[num_sampled : num_sampled + edit.drop]
    guide.edits.append((len(output.token_ids), tuple(dropped), len(edit.append)))
    if sequence.request.gather is not NOTHING and edit.append:
        raise GuideStateError(
            "the guide appends tokens of its own, of which the model has no logits or other tensors; ask for none"
        )
    kept, reason = cut(sequence, edit.append, end_tokens)
    output.token_ids += kept
    output.origins += [SPLICED] * len(kept)
    if output.logprobs is not None:
        output.logprobs += [TokenLogprob(0.0, {}) for _ in kept]
    return reason


def commit_plainly(
    sequence: Sequence,
    results: StepResults,
    end_tokens: frozenset[int],
    grammar: GuidedState | None,
    drafted_by: DraftedBy,
) -> bool:
    """Append all of the iteration's tokens where nothing ends with them and no matcher has failed; what most iterations
    of most requests are. False: there is more to it, and nothing has changed."""
    output, own_ends = sequence.output, sequence.request.end_ids
    count, *tokens = results.verified[sequence.slot]
    del tokens[count + 1 :]
    num_tokens = len(output.token_ids) + count + 1
    ends = end_tokens if own_ends is None else own_ends
    if num_tokens >= sequence.max_new_tokens or not ends.isdisjoint(tokens) or min(tokens) < 0:
        return False
    if grammar is not None and not _is_accepted(sequence, grammar, num_tokens):
        return False
    if count:
        output.origins += drafted_by(sequence, count)
    output.origins.append(SAMPLED)
    output.token_ids += tokens
    if results.num_proposed and (proposed := results.num_proposed[sequence.slot]):
        count_drafts(output.stats, proposed, count, count + 1)
    return True


def _is_accepted(sequence: Sequence, grammar: GuidedState, num_tokens: int) -> bool:
    """Whether the matcher took the answer's first `num_tokens` tokens, and no matcher has failed. With another
    iteration in flight it may be ahead of what is committed here."""
    ahead = grammar.committed(sequence.slot) + sequence.resumed_at - num_tokens
    return (ahead == 0 or (ahead > 0 and sequence.in_flight > 1)) and not grammar.num_failed


def count_drafts(stats: OutputStats, proposed: int, accepted: int, num_tokens: int) -> None:
    """Note an iteration that verified `proposed` drafts, of which the first `accepted` are in the answer, and gave it
    `num_tokens` tokens."""
    stats.drafted_iterations += 1
    stats.drafted_tokens += num_tokens
    stats.proposed_drafts += proposed
    stats.accepted_drafts += accepted


def cut(
    sequence: Sequence, tokens: list[int], end_tokens: frozenset[int]
) -> tuple[list[int], FinishReason | None]:
    """Of the tokens that come next those that are the answer's, and why it ends with them, if it does."""
    request, output, room = sequence.request, sequence.output, sequence.max_new_tokens
    if request.end_ids is not None:
        end_tokens = request.end_ids
    last = next((i for i, token in enumerate(tokens, 1) if token in end_tokens), len(tokens))
    if request.only_given and request.given:
        room = min(room, departure(request.given_ids, len(output.token_ids), tokens))
    kept = tokens[: min(last, room - len(output.token_ids))]
    stopped = find_stop(sequence, kept, end_tokens)
    if stopped is not None:
        return kept[:stopped], "stop"
    if kept and kept[-1] in end_tokens:
        return kept, "stop"
    return kept, "length" if len(output.token_ids) + len(kept) == room else None


def departure(given: abc.Sequence[int], num_before: int, tokens: abc.Sequence[int]) -> int:
    """The length of an answer that is only compared with `given`, where `tokens` follow its first `num_before` tokens:
    it ends with the first token that differs, or that comes after the given ones."""
    for number, token in enumerate(tokens, num_before):
        if number >= len(given) or token != given[number]:
            return number + 1
    return num_before + len(tokens) + 1


def find_stop(sequence: Sequence, tokens: list[int], end_tokens: frozenset[int]) -> int | None:
    """How many of `tokens` there are up to a stop word or stop token id; None without one. An end token ends the answer
    by itself."""
    sampling, output, words = sequence.request.sampling, sequence.output, sequence.stop_words
    if words is None and not sampling.stop_token_ids:
        return None
    for i, token in enumerate(tokens, 1):
        counts = len(output.token_ids) + i > sampling.min_tokens
        word = words.feed(token) if words is not None else None
        by = token if token in sampling.stop_token_ids and token not in end_tokens else word
        if counts and by is not None:
            output.stopped_by = by
            return i
    return None


def check_grammar(sequence: Sequence, grammar: GuidedState, new_tokens: int, is_last: bool) -> None:
    """What is about to be committed must have been accepted by the matcher. What goes wrong after the answer's last
    token is of no account: without drafts it would not have come to that."""
    accepted = grammar.committed(sequence.slot)
    expected = len(sequence.output.token_ids) + new_tokens - sequence.resumed_at
    # With another iteration in flight the matcher may be ahead of what is committed here.
    is_ahead = sequence.in_flight > 1
    if accepted >= expected and (is_last or is_ahead):
        return
    if accepted == expected and not grammar.num_failed:
        return
    status, message = grammar.status(sequence.slot)
    if status:
        raise GuideStateError(message)
    if accepted != expected:
        raise GuideStateError(
            f"the grammar accepted {accepted} tokens of {expected}; nothing more is given out. "
            "A matcher of your own may end at the model's end tokens alone"
        )


def nothing_left(sequence: Sequence, grammar: GuidedState | None) -> RequestError:
    """Why no token could be drawn at the next position."""
    place = f"token {len(sequence.output.token_ids) + 1}"
    forbidding = [*(["the guide"] if grammar is not None else []), *sequence.request.forbidding]
    status, message = grammar.status(sequence.slot) if grammar is not None else ("", "")
    if status not in ("", "refused"):
        return GuideStateError(message)
    if forbidding:
        verb = "forbids every one" if len(forbidding) == 1 else "forbid every one together"
        kind = DeadEndError if grammar is None else GuideStateError
        return kind(
            f"no token is left for {place} or one soon after: {' and '.join(forbidding)} {verb}; "
            "allow more tokens, or another guide"
        )
    return RequestError(f"the model's logits for {place} or one soon after are all NaN or -inf")
