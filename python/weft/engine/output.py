"""The output processor: it reads the results of batches, commits tokens to sequences, and ends sequences.

It reads batches in launch order. It commits a token only after the sequence's matcher has accepted it. If one sequence
fails, the others continue: their tokens are already committed on the device.

A matcher may also edit the end of the text (`edit` in `csrc/include/weft/matcher.h`). The device does not see the edit,
so the sequence drops its tokens in flight and prefills its text again, as after preemption.
"""

from __future__ import annotations

import time
from collections import abc, deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from weft.core import SAMPLED, SPLICED, FinishReason, Output, OutputStats, TokenLogprob
from weft.core.request import NOTHING
from weft.engine.device.results import StepResults
from weft.engine.runner.in_flight import InFlightBatch
from weft.engine.runner.runner import ModelRunner
from weft.engine.scheduler.scheduler import Released, Scheduler
from weft.engine.scheduler.waiting import Waiting
from weft.engine.sequence import Rest, Sequence, Stage
from weft.engine.stats import StepRecord
from weft.errors import DeadEndError, GuideError, GuideStateError, InputError, RequestError
from weft.guided.answers import Answers
from weft.guided.state import Edit, GuidedState
from weft.runtime.interface import Runtime
from weft.tokenizer.stop_words import StopTokens
from weft.tokenizer.text import RunningText

if TYPE_CHECKING:
    from weft.engine.features.flight_recorder import FlightRecorder

CommitSearch = Callable[[Sequence, StepResults], FinishReason | None]
"""A function that commits one iteration of a beam search. It returns the finish reason, or None if the search goes
on."""

DraftedBy = Callable[[Sequence, int], abc.Sequence[str]]
"""A function that names the drafter of each of the sequence's next accepted tokens. The second argument is the number
of these tokens."""


class OutputProcessor:
    """Commits the results of the batches `in_flight`, at most two.

    `num_finished` counts the sequences that have ended. `recorder` is notified of those that failed.
    """

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        runner: ModelRunner,
        guided_state: GuidedState,
        answers: Answers,
        end_tokens: frozenset[int],
        commit_search: CommitSearch,
        drafted_by: DraftedBy,
    ) -> None:
        self.in_flight: deque[InFlightBatch] = deque()
        self.num_finished = 0
        self.recorder: FlightRecorder | None = None
        self._runtime, self._scheduler = runtime, scheduler
        self._runner, self._guided_state, self._end_tokens = runner, guided_state, end_tokens
        self._answers = answers
        self._commit_search, self._drafted_by = commit_search, drafted_by
        self._last_read = 0.0

    # -- a step

    def begin(self, waiting: Waiting) -> None:
        """Before a step, end sequences whose deadline has passed, that have waited too long since they were preempted,
        or whose guide failed. Queue those whose guide is ready.

        Also collect asynchronous failures of the work in flight, and fail its sequences. Otherwise the next launch
        would raise them, and the wrong sequences would fail.
        """
        if waiting.deadlines.entries or waiting.preempted:
            for sequence in waiting.late():
                self.finish(sequence, "timeout")
        if waiting.unready or waiting.compiled or waiting.starts.orphans:
            for sequence, error in waiting.collect():
                self.finish(sequence, "error", error)
        try:
            self._runtime.check()
        except Exception as error:
            self._fail(self._sequences_in_flight(), error)

    def process(self, batch: InFlightBatch, record: StepRecord, keep: int) -> None:
        """Take over a new batch, then read the batches in flight except the last `keep`."""
        earlier = self._sequences_in_flight() if batch.failures else []
        if batch.moves is not None:
            self._check_moves(batch)
        if batch.is_launched:
            self.in_flight.append(batch)
        else:
            keep = 0
        for sequence, error in batch.unopened:
            self._fail([sequence], error)
        for sequences, error in batch.failures:  # each may be an asynchronous failure of earlier work
            self._fail([*earlier, *sequences], error)
        if batch.failures:
            self._settle_failures(record)
        while len(self.in_flight) > keep:
            self._read(record)

    def drain(self, record: StepRecord) -> None:
        """Read all batches in flight."""
        while self.in_flight:
            self._read(record)

    # -- a batch

    def _read(self, record: StepRecord) -> None:
        """Wait for the oldest batch, and commit its tokens."""
        batch = self.in_flight.popleft()
        assert batch.results is not None
        waiting_since = time.perf_counter()
        try:
            results = batch.results.wait()
            self._runtime.check()
        except Exception as error:
            self._fail_batch(batch, error)
            return
        if batch.moves is not None:
            self._check_moves(batch)
        now = time.perf_counter()
        record.model_s += now - waiting_since
        seconds, self._last_read = now - max(batch.began, self._last_read), now
        if batch.first or batch.reading:
            self._commit_prompts(batch, results, record)
        num_rows, plan = len(batch.decoding), batch.plan
        num_drafts = plan.num_drafts if plan is not None else 0
        self._scheduler.pace.note(num_rows, num_drafts, batch.num_context, seconds)
        is_measured = bool(batch.decoding) and plan is not None and not plan.num_context
        if not is_measured:
            self._scheduler.draft_lengths.pass_over(num_drafts)
        if batch.decoding:
            num_before = len(record.accepted_lengths)
            self._commit_decoding(batch, results, record)
            if plan is not None and is_measured:
                accepted = record.accepted_lengths[num_before:]
                self._scheduler.note_iteration(num_rows, num_drafts, seconds, accepted)
                if plan.guided_logits and num_drafts:
                    size, num_tokens = (plan.batch, num_drafts), self._answers.num_guided
                    self._runner.guidance.observe(size, batch.masks_drafts, seconds, num_tokens)
        self._retire(batch)

    def _commit_prompts(self, batch: InFlightBatch, results: StepResults, record: StepRecord) -> None:
        """Commit the first tokens of prompts that end in the batch, and end the sequences whose prompts failed."""
        self._guided_state.commit_owed(batch.epoch)
        for sequence in (*batch.first, *batch.reading):
            failure = batch.prompts[sequence].error
            if failure is not None and sequence.stage is not Stage.FINISHED:
                self.finish(sequence, "error", failure)
        for sequence in batch.first:
            if sequence.stage is not Stage.FINISHED:
                if not sequence.resumed_at:
                    sequence.output.stats.reused_tokens = batch.prompts[sequence].first
                self._commit(sequence, results, record)
                self._follow(sequence)

    def _commit_decoding(self, batch: InFlightBatch, results: StepResults, record: StepRecord) -> None:
        """Commit the tokens of the decoding sequences: natively, except for those that need Python."""
        answers = self._answers
        # An iteration may owe its grammar commit (`owes_commit` in runner/step.py). The matchers must accept its tokens
        # before the sequences get them, so the native call runs an owed commit first.
        needs_python = answers.commit(
            batch.slots, results.address, results.has_drafts, batch.epoch, self._last_read, record.number
        )
        record.generated_tokens += answers.num_tokens
        if answers.num_drafting:
            record.speculating += answers.num_drafting
            record.speculated_tokens += answers.num_drafting_tokens
            record.proposed_drafts += answers.num_proposed
            record.accepted_drafts += answers.num_accepted
            record.accepted_lengths += answers.accepted_lengths
        if not needs_python:
            return
        left_to_python, due, reporting = answers.take()
        for sequence in due:
            self._scheduler.cache(sequence)
        for sequence in left_to_python:
            # A callback may have ended it. A sequence that must read its text again has no use for later tokens.
            if sequence.stage is not Stage.FINISHED and not sequence.must_reread:
                self._commit_iteration(sequence, results, record)
                if sequence.is_plain or sequence.must_reread:
                    self._follow(sequence)
        for sequence in reporting:
            if sequence.stage is not Stage.FINISHED:
                sequence.report()

    def _follow(self, sequence: Sequence) -> None:
        """Let the native commits follow a sequence whose tokens Python has committed."""
        if sequence.stage is Stage.FINISHED or sequence.must_reread:
            self._answers.close(sequence.slot)
            return
        request, words, stats = sequence.request, sequence.stop_words, sequence.output.stats
        search = words.search if isinstance(words, RunningText | StopTokens) else None
        sequence.is_plain = (
            sequence.search is None
            and (words is None or search is not None)
            and not (request.only_given and request.given)
            and request.sampling.logprobs is None
            and request.gather is NOTHING
            and request.processor is None
            and stats.first_token_at is not None
        )
        ends = self._end_tokens if request.end_ids is None else request.end_ids
        token_words, text_words, texts = search or (None, None, None)
        self._answers.open(
            sequence.slot,
            sequence,
            is_plain=sequence.is_plain,
            is_guided=sequence.is_guided,
            resumed_at=sequence.resumed_at,
            max_tokens=sequence.max_new_tokens,
            ends=[*ends, *request.sampling.stop_token_ids],
            token_words=token_words,
            text_words=text_words,
            texts=texts,
        )

    def close(self, released: abc.Sequence[Released]) -> None:
        """Forget the sequences that released their slots. Call it before another sequence decodes there."""
        for _, slots in released:
            self._answers.close(slots[0])

    def _commit_iteration(self, sequence: Sequence, results: StepResults, record: StepRecord) -> None:
        stats = sequence.output.stats
        stats.iterations += 1
        iterations, tokens = stats.drafted_iterations, stats.drafted_tokens
        proposed, accepted = stats.proposed_drafts, stats.accepted_drafts
        self._commit(sequence, results, record)
        record.speculating += stats.drafted_iterations - iterations
        record.speculated_tokens += stats.drafted_tokens - tokens
        record.proposed_drafts += stats.proposed_drafts - proposed
        record.accepted_drafts += stats.accepted_drafts - accepted
        if stats.drafted_iterations > iterations:
            record.accepted_lengths.append(stats.accepted_drafts - accepted)

    def _commit(self, sequence: Sequence, results: StepResults, record: StepRecord) -> None:
        """Append the committed tokens to a sequence, and end the sequence if they complete its answer."""
        output = sequence.output
        num_before = len(output.token_ids)
        try:
            reason = self._append(sequence, results)
        except Exception as error:  # any failure ends this sequence alone
            self.finish(sequence, "error", error)
            return
        num_tokens = len(output.token_ids)
        has_more = num_tokens > num_before or sequence.search is not None
        record.generated_tokens += num_tokens - num_before if sequence.search is None else 1
        if has_more:
            output.stats.note_tokens(self._last_read, record.number)
        if num_tokens >= sequence.next_cache_at and not sequence.must_reread:
            self._scheduler.cache(sequence)
        if reason is not None:
            if sequence.search is None:
                sequence.rest = rest_of(sequence, num_tokens - num_before, results.count(sequence.slot))
            self.finish(sequence, reason)
            return
        if sequence.must_reread:
            self._scheduler.reread(sequence)
        if sequence.is_streaming:
            sequence.report()

    def _append(self, sequence: Sequence, results: StepResults) -> FinishReason | None:
        """Append the tokens to the answer. Returns the finish reason, or None if the answer goes on."""
        if sequence.search is not None:
            return self._commit_search(sequence, results)
        guided_state = self._guided_state if sequence.is_guided else None
        return commit(sequence, results, self._end_tokens, guided_state, self._drafted_by)

    def _retire(self, batch: InFlightBatch) -> None:
        results = batch.results
        left = batch.end()
        if left:
            for sequence in left:
                rest = sequence.rest
                if rest is not None and results is not None and rest.position == sequence.num_tokens:
                    token = results.tokens(sequence.slot)[0]
                    sequence.rest = rest._replace(next_token=token if token >= 0 else None)
            self._scheduler.retire(left)

    # -- ends

    def finish(self, sequence: Sequence, reason: FinishReason, error: BaseException | None = None) -> None:
        """End a sequence that has not ended, in any stage. Its resources are released now, or after the last batch in
        flight that contains it."""
        error = _as_request_error(error, sequence.stage)
        had_slot = sequence.is_active
        if had_slot:
            self._answers.close(sequence.slot)
        if had_slot and sequence.is_guided and sequence.search is None:
            is_whole = reason == "stop" and sequence.output.stopped_by is None
            sequence.output.stats.guided_valid = is_whole and self._guided_state.is_terminated(sequence.slot)
        _note_best(sequence.output)
        self._scheduler.remove(sequence)
        if not had_slot or sequence.starts_ahead:
            _note_report(sequence)
        self.num_finished += 1
        sequence.finish(reason, error)
        if not sequence.num_in_flight:
            sequence.close()
        if error is not None and self.recorder is not None:
            self.recorder.failed(sequence)

    def _fail(self, sequences: abc.Sequence[Sequence], error: BaseException) -> None:
        """End those of `sequences` that have not ended, with `error`."""
        for sequence in sequences:
            if not sequence.is_finished:
                self.finish(sequence, "error", error)

    def _sequences_in_flight(self) -> list[Sequence]:
        """The sequences of all batches in flight. A sequence in two batches appears twice."""
        return [sequence for batch in self.in_flight for sequence in batch.sequences]

    def _fail_batch(self, batch: InFlightBatch, error: BaseException) -> None:
        """Fail all sequences of a batch, and those of later batches if the device can't go on."""
        self._fail(batch.sequences, error)
        for sequence in batch.sequences:  # the states of those that had ended are unknown, too
            sequence.rest = None
        try:
            self._runtime.synchronize()
        except Exception as later:
            self._fail(self._sequences_in_flight(), later)
        self._check_moves(batch)
        self._runner.snapshots.drop_pending()
        self._guided_state.forget_owed(batch.epoch)
        self._retire(batch)

    def _check_moves(self, batch: InFlightBatch) -> None:
        """If page moves failed, fail all running sequences and drop the cache: the pages' content is unknown."""
        error = batch.moves.error if batch.moves is not None else None
        if error is not None:
            self._fail([*self._scheduler.running], error)
            self._scheduler.capacity.kv.discard_cache()

    def _settle_failures(self, record: StepRecord) -> None:
        """After a failed launch, read the batches in flight, and wait for what the launch had launched before it
        failed. Its sequences have failed already, so its errors are dropped."""
        self.drain(record)
        with suppress(Exception):
            self._runtime.synchronize()
        self._runner.snapshots.drop_pending()


def rest_of(sequence: Sequence, num_kept: int, num_accepted: int) -> Rest | None:
    """The state that the device has for a sequence that ends, for a model with recurrent states. None if the device has
    gone past the text. The host has just committed an iteration: it accepted `num_accepted` drafts, and `num_kept` of
    its `num_accepted` + 1 tokens belong to the answer.

    The slot's memory has the state after the first token that the slot's last iteration read, and owes its accepted
    drafts. Let an iteration read the token at position p and drafts after it. Its tokens are for positions p + 1 on.

    - If it is the slot's last iteration, the memory has the state after p + 1 tokens. The text has p + 1 + `num_kept`
      tokens. The state of all but the last follows `num_kept` - 1 drafts later, and the iteration accepted them.
    - With overlap, the next iteration may be launched already. It reads first the last one of the device's tokens. If
      that is the last token of the text, the memory then has the state of the whole text. If the text was cut before
      it, the memory has a state beyond the text.
    """
    num_later = sequence.num_in_flight - 1  # without the batch that is being read
    if num_later == 0 and num_kept:
        return Rest(sequence.num_tokens - 1, num_kept - 1)
    if num_later == 1 and num_kept == num_accepted + 1:
        return Rest(sequence.num_tokens, 0)
    return None


def _as_request_error(error: BaseException | None, stage: Stage) -> RequestError | InputError | None:
    if error is None or isinstance(error, RequestError | InputError):
        return error
    kind = GuideError if stage is Stage.COMPILING else RequestError
    wrapped = kind(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _note_best(output: Output) -> None:
    """After a beam search, set the output's gathered tensors to the best answer's."""
    if output.hypotheses:
        best = output.hypotheses[0]
        output.generation_logits = best.generation_logits
        output.additional |= best.additional


def _note_report(sequence: Sequence) -> None:
    """If the matcher is a program, copy its log and its variables to the output."""
    if sequence.guide is None or sequence.guide.matcher is None:
        return
    report = sequence.guide.matcher.report(len(sequence.output.token_ids))
    if report is not None:
        sequence.output.program_log, sequence.output.program_variables = report


# -- committing the tokens of an iteration


def commit(
    sequence: Sequence,
    results: StepResults,
    end_tokens: frozenset[int],
    guided_state: GuidedState | None,
    drafted_by: DraftedBy,
) -> FinishReason | None:
    """Append the iteration's tokens to the answer. Returns the finish reason, or None if the answer goes on.

    `guided_state` is None for an unguided sequence. Raises `RequestError` for a failure that ends the sequence. Then
    none of the iteration's tokens is appended, except those before an edit that fails.
    """
    # An edit parks its slot like a failure, so it counts in `num_failed`.
    edit = None
    if guided_state is not None and guided_state.num_failed:
        edit = _edit_of(sequence, results, guided_state)
    if edit is not None:
        reason = _commit_edit(sequence, results, edit, end_tokens, drafted_by)
        sequence.must_reread = True  # even if the answer ends: its pages don't hold the appended tokens
        return reason
    slot = sequence.slot
    output = sequence.output
    if sequence.processor is not None:
        sequence.processor.check()
    num_accepted, tokens = results.count(slot), results.tokens(slot)
    # A negative token means that no token could be sampled at this position.
    num_sampled = next((i for i, token in enumerate(tokens) if token < 0), len(tokens))
    kept, reason = cut(sequence, tokens[:num_sampled], end_tokens)
    if num_sampled < len(tokens) and reason is None:
        raise nothing_left(sequence, guided_state)
    if guided_state is not None:
        check_grammar(sequence, guided_state, len(kept), is_last=reason is not None)
    num_drafted = min(num_accepted, len(kept))
    output.origins += drafted_by(sequence, num_drafted)
    output.origins += [SAMPLED] * (len(kept) - num_drafted)
    output.token_ids += kept
    num_drafts = results.num_drafts(slot)
    if num_drafts:
        # Drafts beyond the answer's end are neither accepted nor rejected, so they do not count.
        num_counted = num_drafts if reason is None else min(num_drafts, len(kept))
        count_drafts(output.stats, num_counted, num_drafted, len(kept))
    if output.logprobs is not None:
        output.logprobs += results.logprobs(slot, len(kept), sequence.request.sampling.logprobs or 0)
    if sequence.request.gather is not NOTHING:
        sequence.gathered.add(output, results.outputs(slot, sequence.request.gather, len(kept)))
    return reason


def count_drafts(stats: OutputStats, num_drafts: int, num_accepted: int, num_tokens: int) -> None:
    """Add an iteration to the statistics. The iteration verified `num_drafts` drafts, of which the first `num_accepted`
    are in the answer. It added `num_tokens` tokens."""
    stats.drafted_iterations += 1
    stats.drafted_tokens += num_tokens
    stats.proposed_drafts += num_drafts
    stats.accepted_drafts += num_accepted


def cut(
    sequence: Sequence, tokens: list[int], end_tokens: frozenset[int]
) -> tuple[list[int], FinishReason | None]:
    """Cut the next tokens at the answer's end. Returns the tokens that belong to the answer, and the finish reason or
    None."""
    request, output, max_tokens = sequence.request, sequence.output, sequence.max_new_tokens
    if request.end_ids is not None:
        end_tokens = request.end_ids
    num_to_end = next((i for i, token in enumerate(tokens, 1) if token in end_tokens), len(tokens))
    if request.only_given and request.given:
        max_tokens = min(max_tokens, departure(request.given_ids, len(output.token_ids), tokens))
    kept = tokens[: min(num_to_end, max_tokens - len(output.token_ids))]
    num_to_stop = find_stop(sequence, kept, end_tokens)
    if num_to_stop is not None:
        return kept[:num_to_stop], "stop"
    if kept and kept[-1] in end_tokens:
        return kept, "stop"
    return kept, "length" if len(output.token_ids) + len(kept) == max_tokens else None


def departure(given: abc.Sequence[int], num_before: int, tokens: abc.Sequence[int]) -> int:
    """The length of the answer up to and including the first token that is not in its `given` text: a token that
    differs from it or comes after its end.

    `tokens` follow the answer's first `num_before` tokens. If all of them are in the given text, the result is one more
    than their end.
    """
    for number, token in enumerate(tokens, num_before):
        if number >= len(given) or token != given[number]:
            return number + 1
    return num_before + len(tokens) + 1


def find_stop(sequence: Sequence, tokens: list[int], end_tokens: frozenset[int]) -> int | None:
    """The number of `tokens` up to and including the first stop word or stop token; None if there is none. End tokens
    are not stop tokens. Sets `stopped_by`, and feeds the stop words, so pass each token of the answer once."""
    sampling, output, words = sequence.request.sampling, sequence.output, sequence.stop_words
    if words is None and not sampling.stop_token_ids:
        return None
    if isinstance(words, RunningText | StopTokens):
        # Native commits have added tokens that end no word.
        if sequence.num_watched < len(output.token_ids):
            words.skip(output.token_ids[sequence.num_watched :])
        sequence.num_watched = len(output.token_ids) + len(tokens)
    for i, token in enumerate(tokens, 1):
        is_long_enough = len(output.token_ids) + i > sampling.min_tokens
        # Feed the tokens before `min_tokens` too, because a word may start in them and end later.
        word = words.feed(token) if words is not None else None
        stop = token if token in sampling.stop_token_ids and token not in end_tokens else word
        if is_long_enough and stop is not None:
            output.stopped_by = stop
            return i
    return None


def check_grammar(sequence: Sequence, guided_state: GuidedState, num_new: int, is_last: bool) -> None:
    """Raise `GuideStateError` unless the matcher accepted the next `num_new` tokens.

    Failures after the answer's last token are ignored, because decoding without drafts would not reach them.
    """
    accepted = guided_state.committed(sequence.slot)
    expected = len(sequence.output.token_ids) + num_new - sequence.resumed_at
    # With another iteration in flight, the matcher may already have accepted that iteration's tokens.
    has_later_tokens = sequence.num_in_flight > 1
    if accepted >= expected and (is_last or has_later_tokens):
        return
    if accepted == expected and not guided_state.num_failed:
        return
    status, message = guided_state.status(sequence.slot)
    if status:
        raise GuideStateError(message)
    if accepted != expected:
        raise GuideStateError(
            f"the grammar accepted {accepted} tokens of {expected}; nothing more is given out. "
            "A matcher of your own may end at the model's end tokens alone"
        )


def nothing_left(sequence: Sequence, guided_state: GuidedState | None) -> RequestError:
    """Make the error for a position at which no token could be sampled."""
    place = f"token {len(sequence.output.token_ids) + 1}"
    forbidding = [*(["the guide"] if guided_state is not None else []), *sequence.request.forbidding]
    status, message = guided_state.status(sequence.slot) if guided_state is not None else ("", "")
    if status not in ("", "refused"):
        return GuideStateError(message)
    if forbidding:
        verb = "forbids every one" if len(forbidding) == 1 else "forbid every one together"
        kind = DeadEndError if guided_state is None else GuideStateError
        return kind(
            f"no token is left for {place} or one soon after: {' and '.join(forbidding)} {verb}; "
            "allow more tokens, or another guide"
        )
    return RequestError(f"the model's logits for {place} or one soon after are all NaN or -inf")


# -- edits of the text by a matcher

MAX_EMPTY_EDITS = 256
"""A request fails after more than this many consecutive edits that only drop tokens. Such a matcher might never end."""


def _edit_of(sequence: Sequence, results: StepResults, guided_state: GuidedState) -> Edit | None:
    """The edit that the matcher requests in this iteration, or None.

    With another iteration in flight, the slot's edit may belong to that iteration. Then the result is None, and the
    edit is found when that iteration is read.
    """
    edit = guided_state.edit(sequence.slot)
    before = len(sequence.output.token_ids) - sequence.resumed_at
    return edit if edit is not None and edit.committed <= before + results.count(sequence.slot) + 1 else None


def _commit_edit(
    sequence: Sequence, results: StepResults, edit: Edit, end_tokens: frozenset[int], drafted_by: DraftedBy
) -> FinishReason | None:
    """Append the iteration's tokens before those that the edit drops, then the tokens that the edit appends.

    Returns the finish reason, or None if the answer goes on. The device does not see the edit, so later tokens in
    flight are invalid, and the sequence must prefill its text again. Raises `GuideStateError` for an edit that fails
    the request.
    """
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
