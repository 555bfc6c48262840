"""Output processing: what batches committed goes to requests, and what failed ends those that were in it."""

from __future__ import annotations

import time
from collections import abc, deque
from collections.abc import Callable
from typing import Protocol

from weft import registry
from weft.core import SAMPLED, SPLICED, FinishReason, Output, OutputStats, TokenLogprob
from weft.core.request import NOTHING
from weft.engine.device.results import StepResults
from weft.engine.recording import Recorder
from weft.engine.scheduler.scheduler import Scheduler
from weft.engine.scheduler.waiting import Waiting
from weft.engine.sequence import Sequence, Stage
from weft.engine.stats import StepRecord
from weft.engine.step.draft_masking import DraftGuidance
from weft.engine.step.in_flight import InFlightBatch
from weft.errors import DeadEndError, GuideError, GuideStateError, InputError, RequestError
from weft.guided.state import GuidedState, Splice
from weft.runtime.interface import Runtime


class Launched(Protocol):
    """What the processor tells the runner."""

    guidance: DraftGuidance

    def drop_snapshots(self) -> None:
        """Take what launches that failed left."""


CommitSearch = Callable[[Sequence, StepResults], FinishReason | None]


class OutputProcessor:
    """Reads batches in the order of their launches; at most two are in flight. `commit_search` commits what a search
    found; `drafted_by` names who drafted."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        finisher: Finisher,
        runner: Launched,
        state: GuidedState,
        end_tokens: frozenset[int],
    ) -> None:
        self.in_flight: deque[InFlightBatch] = deque()
        self.commit_search: CommitSearch | None = None
        self.drafted_by: DraftedBy = _unnamed
        self.finisher = finisher
        self._runtime, self._scheduler = runtime, scheduler
        self._runner, self._state, self._end_tokens = runner, state, end_tokens
        self._last_read = 0.0

    def set_recorder(self, recorder: Recorder) -> None:
        """Let `recorder` hear of requests that fail."""
        self.finisher.recorder = recorder

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a request, wherever it is."""
        self.finisher.finish(sequence, reason)

    def begin(self, waiting: Waiting) -> None:
        """Before a step: end requests whose time is up or whose guide can't be had, and hear of what failed in flight
        before anything else is launched, which would be blamed for it."""
        if waiting.deadlines.entries or waiting.preempted:
            for sequence in waiting.late():
                self.finisher.finish(sequence, "timeout")
        if waiting.unready or waiting.compiled or waiting.programs.orphans:
            for sequence, error in waiting.collect():
                self.finisher.finish(sequence, "error", error)
        try:
            self._runtime.check()
        except Exception as error:
            self.finisher.fail(self._sequences_in_flight(), error)

    def process(self, batch: InFlightBatch, record: StepRecord, keep: int) -> None:
        """Take a batch that was launched, and read those in flight but for `keep`."""
        for sequence, error in batch.unopened:
            self.finisher.fail([sequence], error)
        for sequences, error in batch.failures:
            self._fail_launch(sequences, error, record)
        if batch.moving is not None:
            self._check_moves(batch)
        if batch.is_launched:
            self.in_flight.append(batch)
        self.drain(record, keep if batch.is_launched else 0)

    def drain(self, record: StepRecord, keep: int = 0) -> None:
        """Read what is in flight, but for the last `keep` batches."""
        while len(self.in_flight) > keep:
            self._read(record)

    # -- a batch

    def _read(self, record: StepRecord) -> None:
        """Wait for the oldest batch, and hand out what it committed."""
        batch = self.in_flight.popleft()
        assert batch.results is not None
        waiting_since = time.perf_counter()
        try:
            results = batch.results.wait()
            self._runtime.check()
        except Exception as error:
            self._fail_batch(batch, error)
            return
        if batch.moving is not None:
            self._check_moves(batch)
        now = time.perf_counter()
        self._state.commit_owed(batch.epoch)
        record.model_s += now - waiting_since
        seconds, self._last_read = now - max(batch.began, self._last_read), now
        self._observe(batch, results, seconds)
        for sequence in (*batch.first, *batch.reading):
            failure = batch.prompts[sequence].error
            if failure is not None and sequence.stage is not Stage.FINISHED:
                self.finisher.finish(sequence, "error", failure)
        for sequence in batch.first:
            if sequence.stage is not Stage.FINISHED:
                if not sequence.resumed_at:
                    sequence.output.stats.reused_tokens = batch.prompts[sequence].first
                self._commit(sequence, results, record)
        for sequence in batch.decoding:
            if sequence.stage is not Stage.FINISHED and not sequence.is_spliced:
                self._commit_iteration(sequence, results, record)
        self._retire(batch)

    def _observe(self, batch: InFlightBatch, results: StepResults, seconds: float) -> None:
        plan = batch.plan
        if plan is not None and plan.guides and plan.num_drafts:
            guided = [r for r in batch.decoding if r.is_guided and r.stage is not Stage.FINISHED]
            tokens = sum(results.verified[sequence.slot][0] + 1 for sequence in guided)
            self._runner.guidance.observe((plan.batch, plan.num_drafts), batch.masks_drafts, seconds, tokens)

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

    def _commit(self, sequence: Sequence, results: StepResults, record: StepRecord) -> None:
        """Append what the iteration committed to the request, and end it where it ends."""
        output = sequence.output
        before = len(output.token_ids)
        try:
            reason = self._append(sequence, results)
        except Exception as error:  # whatever it is, the others' tokens are committed on the device
            self.finisher.finish(sequence, "error", error)
            return
        num_tokens = len(output.token_ids)
        has_more = num_tokens > before or sequence.search is not None
        record.generated_tokens += num_tokens - before if sequence.search is None else 1
        if has_more:
            output.stats.note_tokens(self._last_read, record.number)
        if num_tokens >= sequence.next_cache_at and not sequence.is_spliced:
            self._scheduler.capacity.cache(sequence)
        if reason is not None:
            self.finisher.finish(sequence, reason)
        elif sequence.is_streaming:
            sequence.report()

    def _append(self, sequence: Sequence, results: StepResults) -> FinishReason | None:
        """Append the tokens to the answer; why it ends, if it does."""
        if sequence.search is not None:
            assert self.commit_search is not None
            return self.commit_search(sequence, results)
        grammar = self._state if sequence.is_guided else None
        if sequence.is_plain and commit_plainly(
            sequence, results, self._end_tokens, grammar, self.drafted_by
        ):
            return None
        if grammar is not None and grammar.num_failed:
            splice = self._splice_of(sequence, results)
            if splice is not None:
                reason = commit_splice(sequence, results, splice, self._end_tokens, self.drafted_by)
                if reason is None:
                    self._scheduler.splice(sequence)
                sequence.is_spliced = True  # also at its end: the device does not hold what the program put
                return reason
        return commit(sequence, results, self._end_tokens, grammar, self.drafted_by)

    def _splice_of(self, sequence: Sequence, results: StepResults) -> Splice | None:
        """Where the iteration is the one in which the request's matcher wrote the end of its text anew."""
        splice = self._state.splice(sequence.slot)
        before = len(sequence.output.token_ids) - sequence.resumed_at
        return splice if splice and splice.committed <= before + results.count(sequence.slot) + 1 else None

    def _retire(self, batch: InFlightBatch) -> None:
        left = batch.end()
        if left:
            self._scheduler.retire(left)

    # -- failures

    def _sequences_in_flight(self) -> list[Sequence]:
        """A request in two batches stands there twice."""
        return [sequence for batch in self.in_flight for sequence in batch.sequences]

    def _fail_batch(self, batch: InFlightBatch, error: BaseException) -> None:
        """What was launched together fails together, and with it what later work can't go on without."""
        self.finisher.fail(batch.sequences, error)
        try:
            self._runtime.synchronize()
        except Exception as later:
            self.finisher.fail(self._sequences_in_flight(), later)
        self._check_moves(batch)
        self._runner.drop_snapshots()
        self._state.forget_owed(batch.epoch)
        self._retire(batch)

    def _check_moves(self, batch: InFlightBatch) -> None:
        """Where pages could not be moved, what is held and cached is not what it is taken for."""
        error = batch.moving.error if batch.moving is not None else None
        if error is not None:
            self.finisher.fail([*self._scheduler.running], error)
            self._scheduler.capacity.kv.forget()

    def _fail_launch(
        self, sequences: abc.Sequence[Sequence], error: BaseException, record: StepRecord
    ) -> None:
        """What was to be launched fails; and what is in flight, since a launch also raises what failed there."""
        self.finisher.fail(self._sequences_in_flight(), error)
        self.finisher.fail(sequences, error)
        self.drain(record)
        self._runner.drop_snapshots()


def _unnamed(sequence: Sequence, count: int) -> abc.Sequence[str]:
    """What drafted is a drafter."""
    return ["drafter"] * count


# MERGED-DOC """What becomes of the tokens that an iteration committed: which of them are the answer's, and whether it ends."""


DraftedBy = Callable[[Sequence, int], abc.Sequence[str]]
"""The drafters of so many tokens of a request, that come next in its answer."""


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


# MERGED-DOC """Text that a program writes anew: where it takes back what was just sampled, or puts tokens of its own.
# MERGED-DOC
# MERGED-DOC A matcher may take a token and change the end of the text (`splice` of `csrc/include/weft/matcher.h`). The device
# MERGED-DOC knows nothing of that: whatever is in flight for the request after that token is dropped, and the request reads its
# MERGED-DOC text again before it goes on, as one that was preempted does.
# MERGED-DOC """


MAX_BARREN = 256
"""So often in a row a program may take back a token and put none; then it is not taken to come to an end."""


def commit_splice(
    sequence: Sequence,
    results: StepResults,
    splice: Splice,
    end_tokens: frozenset[int],
    drafted_by: DraftedBy,
) -> FinishReason | None:
    """Append the iteration's tokens up to the splice, and what the program put; why the answer ends, if it does. Where
    it does not, the request is to be read again. Raises `GuideStateError` for what ends it."""
    output, guide = sequence.output, sequence.guide
    assert guide is not None
    num_sampled = splice.committed - (len(output.token_ids) - sequence.resumed_at) - splice.backtrack
    if num_sampled:
        reason = commit(sequence, results.beginning(sequence.slot, num_sampled), end_tokens, None, drafted_by)
        if reason is not None:
            return reason
    guide.num_barren = 0 if num_sampled or splice.tokens else guide.num_barren + 1
    if guide.num_barren > MAX_BARREN:
        raise GuideStateError(
            f"the program took back {MAX_BARREN} tokens in a row and put none in their place; it should forbid what "
            "it takes back"
        )
    taken = results.tokens(sequence.slot)[num_sampled : num_sampled + splice.backtrack]
    guide.splices.append((len(output.token_ids), tuple(taken), len(splice.tokens)))
    return put(sequence, splice.tokens, end_tokens)


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


# MERGED-DOC """How requests end: what they hold goes back to where it came from, and their watchers hear of it."""


class Finisher:
    """Ends requests, wherever they are. `count` have ended so far; `recorder` hears of those that failed."""

    def __init__(self, scheduler: Scheduler, state: GuidedState) -> None:
        self.count = 0
        self.recorder: Recorder | None = None
        self._scheduler, self._state = scheduler, state

    def fail(self, sequences: abc.Sequence[Sequence], error: BaseException) -> None:
        """End with an error those of `requests` that have not ended."""
        for sequence in sequences:
            if not sequence.is_finished:
                self.finish(sequence, "error", error)

    def finish(self, sequence: Sequence, reason: FinishReason, error: BaseException | None = None) -> None:
        """End a request and, unless a batch in flight names it, give back what it holds."""
        error = _as_request_error(error, sequence.stage)
        had_slot = sequence.is_active
        if had_slot and sequence.is_guided and sequence.search is None:
            is_whole = reason == "stop" and sequence.output.stopped_by is None
            sequence.output.stats.guided_valid = is_whole and self._state.is_terminated(sequence.slot)
        _note_best(sequence.output)
        self._scheduler.remove(sequence)
        if not had_slot or sequence.has_program:
            _note_program(sequence)
        self.count += 1
        sequence.finish(reason, error)
        if not sequence.in_flight:
            sequence.let_go()
        if error is not None and self.recorder is not None:
            self.recorder.failed(sequence)


def _as_request_error(error: BaseException | None, stage: Stage) -> RequestError | InputError | None:
    if error is None or isinstance(error, RequestError | InputError):
        return error
    kind = GuideError if stage is Stage.COMPILING else RequestError
    wrapped = kind(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _note_best(output: Output) -> None:
    """What the model gave on the way to the best answer of a search is the output's."""
    if output.hypotheses:
        best = output.hypotheses[0]
        output.generation_logits = best.generation_logits
        output.additional |= best.additional


def _note_program(sequence: Sequence) -> None:
    """What a program leaves, if the request's guide is one that has begun. Work in flight may be ahead of the
    answer."""
    if sequence.guide is None or sequence.guide.matcher is None:
        return
    report = registry.load("leaves", "program_report")(sequence.guide.matcher, len(sequence.output.token_ids))
    if report is not None:
        sequence.output.program_log, sequence.output.program_variables = report
