"""Builds an engine from its parts. Only this file imports all parts, including beam search."""

from __future__ import annotations

from dataclasses import replace

from weft.config import ResolvedConfig, SchedulerConfig, Speculation, positions_ahead
from weft.engine.admission import Admission
from weft.engine.device.state import DecodeParts, HostPages, SlotState
from weft.engine.device.tensors import OutputBuffers
from weft.engine.engine import Engine
from weft.engine.features.beam.run import BeamRun, commit_search
from weft.engine.kv.attention_span import AttentionSpan
from weft.engine.kv.cache import KvManager
from weft.engine.kv.events import KvEventLog
from weft.engine.kv.size import host_pages
from weft.engine.kv.windowed import WindowedPages
from weft.engine.output import DraftedBy, OutputProcessor
from weft.engine.runner.draft_guidance import DraftGuidance
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.prompts import MAX_PARTS
from weft.engine.runner.runner import ModelRunner
from weft.engine.scheduler.policy import FairTurns
from weft.engine.scheduler.scheduler import Capacity, Scheduler
from weft.engine.scheduler.starts import MatcherStarts, StartThreads
from weft.engine.scheduler.waiting import Waiting
from weft.engine.sequence import Sequence
from weft.errors import InputError
from weft.guided.answers import Answers
from weft.guided.grammar_stream import GrammarStream
from weft.guided.proposals import Proposals
from weft.guided.state import GuidedShape
from weft.models.base import Model, PagedKV
from weft.models.states import States
from weft.runtime.interface import Runtime
from weft.spec.load import Drafting


def build_engine(
    runtime: Runtime,
    model: Model,
    kv: PagedKV,
    drafting: Drafting,
    end_token_ids: list[int],
    config: ResolvedConfig,
) -> Engine:
    """Build an engine that decodes with `model`. `kv` is the model's KV cache."""
    check_beam_width(config.max_beam_width, drafting.speculation, config)
    if drafting.speculation.lookahead_sizes is not None and config.additional_outputs:
        raise InputError(
            "additional_outputs does not work with Speculation.lookahead(), whose forward reads more than the text; "
            "leave one of the two out"
        )
    runner = build_runner(runtime, model, kv, drafting, end_token_ids, config)
    parts, speculation = runner.parts, drafting.speculation
    guided_state, proposals = runner.grammar_stream.state, runner.grammar_stream.proposals
    ends = frozenset(end_token_ids)
    drafter = parts.drafter
    capacity = Capacity(
        config,
        build_kv_manager(config, parts),
        max_drafts=parts.max_drafts,
        margin=drafter.reuse_margin if drafter is not None else 0,
        # A drafter with its own KV cache attends to the whole text, so no page can be released early.
        span=AttentionSpan.of(kv.windows) if drafter is None or drafter.kv is None else None,
    )

    def begin_search(sequence: Sequence) -> BeamRun:
        return BeamRun(sequence, guided_state, config.page_size, ends, config.mask_time_limit_s)

    turns = FairTurns()
    starts = MatcherStarts(
        StartThreads(), config.programs_ahead, config.max_program_bytes, turns, config.shares_slots
    )
    waiting = Waiting(config.max_idle_s, turns, starts)
    scheduler = Scheduler(config, speculation, waiting, capacity, begin_search)
    output = OutputProcessor(
        runtime,
        scheduler,
        runner,
        guided_state,
        Answers(guided_state, speculation.drafters, proposals),
        ends,
        commit_search,
        drafted_by(speculation, proposals),
    )
    admission = Admission(config, speculation, parts, capacity)
    runtime.publish()  # so that streams see the weights, KV caches, states and buffers written so far
    return Engine(speculation, scheduler, runner, output, admission)


def check_beam_width(max_beam_width: int, speculation: Speculation, config: SchedulerConfig) -> None:
    """Raise `InputError` if the engine can't run beam searches of `max_beam_width` beams."""
    if max_beam_width < 1:
        raise InputError(f"the beam width is {max_beam_width}; it must be 1 (no beams) or more")
    if max_beam_width > config.max_batch:
        raise InputError(
            f"max_beam_width is {max_beam_width}, but {config.max_batch} sequences are decoded at once; raise "
            "max_batch (of an executor: max_batch_size), or lower the width"
        )
    if max_beam_width > 1 and speculation.drafters:
        raise InputError(
            f"beam search does not work with speculation ({speculation.name}): use Speculation.none(), or a "
            "max_beam_width of 1"
        )


def build_kv_manager(config: ResolvedConfig, parts: DecodeParts) -> KvManager:
    """Build the manager of the KV pages on the device and on the host."""
    windowed, num_windowed = None, parts.kv.num_windowed
    span = AttentionSpan.of([window for window in parts.kv.windows if window.size])
    if num_windowed and span is not None:
        ahead = positions_ahead(parts.max_drafts)
        windowed = WindowedPages(num_windowed, config.page_size, span, ahead)
    return KvManager(
        config.num_pages,
        config.page_size,
        reuse=config.reuse,
        partial_reuse=config.partial_reuse,
        copy_on_partial_reuse=config.copy_on_partial_reuse,
        num_host_pages=parts.host.num_pages if parts.host is not None else 0,
        offload_min_priority=config.secondary_offload_min_priority,
        num_snapshots=config.num_snapshots,
        windowed=windowed,
        log=KvEventLog(config.kv_event_buffer, config.max_seq_len) if config.kv_event_buffer else None,
    )


def drafted_by(speculation: Speculation, proposals: Proposals | None) -> DraftedBy:
    """Return a function that names the drafter of each accepted token.

    The proposals on the host record the drafter of each token. A token without a record is from the drafter on the
    device, which is always the last one. With a single drafter, no lookup is needed.
    """
    last = speculation.drafters[-1] if speculation.drafters else ""
    if len(speculation.drafters) < 2 or proposals is None:
        return lambda sequence, count: [last] * count

    def drafters(sequence: Sequence, count: int) -> list[str]:
        # The proposals count tokens from the last admission, not from the start of the answer.
        first = len(sequence.output.token_ids) - sequence.resumed_at
        return [name or last for name in proposals.origins(sequence.slot, first, count)]

    return drafters


def state_sizes(config: ResolvedConfig, speculation: Speculation) -> tuple[int, int, int, bool]:
    """The sizes of an engine's `States`: the numbers of slots, snapshots and drafts, and whether there are beams."""
    num_snapshots = config.num_snapshots + 1  # one more, to read a prompt twice (`SlotStates`)
    return config.max_batch, num_snapshots, speculation.max_tokens_ahead, config.max_beam_width > 1


def build_runner(
    runtime: Runtime,
    model: Model,
    kv: PagedKV,
    drafting: Drafting,
    end_token_ids: list[int],
    config: ResolvedConfig,
) -> ModelRunner:
    """Build the part of the engine that works on the device: grammar stream, slot state, buffers and graphs."""
    stream, max_drafts = runtime.stream(), drafting.speculation.max_draft_tokens
    if model.config.has_states:
        memories = model.config.layer_memories
        kv.states = States(memories, *state_sizes(config, drafting.speculation), model.device)
    make_proposals = drafting.proposals_maker(runtime)
    shape = GuidedShape(config.max_batch, max(max_drafts, 1), model.config.vocab_size, end_token_ids)
    grammar_stream = GrammarStream(
        runtime,
        shape,
        make_proposals=make_proposals,
        mask_time_limit_s=config.mask_time_limit_s,
        polls=config.host_tasks == "polling",
    )
    outputs = OutputBuffers.allocate(
        runtime,
        stream,
        model,
        config.max_batch + 1,
        max(max_drafts, 1) + 1,
        generation_logits=config.gather_generation_logits,
        additional=config.additional_outputs,
    )
    pages_per_slot = config.pages_for(config.max_seq_len, max_drafts)
    parts = DecodeParts(
        model,
        kv,
        drafting.drafter,
        SlotState(grammar_stream, pages_per_slot, config.max_seq_len, has_windowed=kv.num_windowed > 0),
        has_proposals=make_proposals is not None,
        max_drafts=max_drafts,
        outputs=outputs,
        logprobs=config.logprobs,
    )
    num_host_pages = host_pages(config, sum(cache.page_bytes for cache in parts.caches))
    if num_host_pages:
        parts.host = HostPages.allocate(runtime, parts.caches, num_host_pages)
    # A prompt's part is cut where its state is kept, at most twice.
    num_parts = min(config.max_batch * (1 if kv.states is None else 3), MAX_PARTS)
    graphs = StepGraphs(runtime, stream, grammar_stream, parts, config.graphs, num_parts)
    config = replace(config, host_tasks="polling" if grammar_stream.polls else "callback")
    guidance = DraftGuidance(drafting.speculation.guide_drafts)
    return ModelRunner(runtime, stream, grammar_stream, parts, graphs, config, guidance)
