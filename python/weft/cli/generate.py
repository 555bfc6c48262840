"""`weft generate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from weft.cli import options as o
from weft.cli import sampling_options as s
from weft.cli.answers import Run, finish, note_model, note_room
from weft.cli.guides import GuideOptions, naming, read_guide, read_tools, with_guide_options
from weft.cli.inputs import check_output, choose_speculation, read_prompts
from weft.cli.options import (
    ANY_LIBRARY,
    DEFAULT,
    Device,
    Guided,
    SamplingSource,
)
from weft.errors import InputError


@s.with_sampling_options
@with_guide_options
def generate(
    *,
    prompts: o.Prompts = None,
    file: o.Files = None,
    chat: o.Chat = False,
    system: o.System = None,
    model: o.Model = None,
    device: o.Where = Device.auto,
    dtype: o.Dtype = "auto",
    activations: o.Rounding = o.ROUNDING,
    kv_cache_dtype: o.CacheDtype = o.CACHE_DTYPE,
    graphs: o.GraphKind = o.GRAPHS,
    host_tasks: o.TaskKind = o.HOST_TASKS,
    guide_options: GuideOptions,
    grammar_backend: o.Library = ANY_LIBRARY,
    untrusted: o.Untrusted = False,
    speculation: o.Speculate = DEFAULT,
    head: o.Head = None,
    forced: o.ForcedText = False,
    num_draft_tokens: o.DraftCount = "3",
    guide_drafts: o.GuideDrafts = Guided.auto,
    adaptive: o.Adaptive = False,
    generation_config: s.Defaults = SamplingSource.auto,
    beam_width: s.BeamWidth = None,
    stats_json: s.StatsJson = None,
    trace: s.Trace = None,
    **options: Any,
) -> None:
    """Answer prompts. On a terminal, accepted draft tokens are coloured.

    Exit codes: 0; 1, one of several prompts failed; 2, an option or input is wrong, or the only prompt failed;
    3, a guided answer was cut before its guide ended.
    """
    check_output(stats_json, "--stats-json")
    check_output(trace, "--trace")
    if options["logprobs"] is not None and stats_json is None:
        raise InputError(
            "--logprobs go into the file of --stats-json; give that, too (/dev/stdout shows them)"
        )
    named = read_prompts(prompts or [], file or [])
    guide = read_guide(guide_options)
    if untrusted and guide is None:
        raise InputError("--untrusted is about a guide; give one, such as --json-schema")
    given = s.read_sampling(options)
    if beam_width is not None and speculation is DEFAULT:
        speculation = o.Drafter("none")  # beam search takes no drafts
    chosen = choose_speculation(speculation, head, num_draft_tokens, guide_drafts, forced, model, adaptive)

    from weft.client.generation_config import sampling_defaults
    from weft.config import EngineConfig, model_directory
    from weft.core import SamplingParams
    from weft.llm import LLM

    defaults = sampling_defaults(model_directory(model), generation_config.value)
    sampling = SamplingParams(**{**defaults, **given})
    num_sequences = len(named) * (beam_width or sampling.n or 1)
    engine = EngineConfig(
        max_batch=min(
            num_sequences, EngineConfig().max_batch
        ),  # a smaller cache of keys and values starts faster
        activation_dtype=activations.value,
        graphs=graphs.value,
        host_tasks=host_tasks.value,
        grammar=grammar_backend.value,
        untrusted_guides=untrusted,
        max_beam_width=beam_width or 1,
        kv_cache_dtype=kv_cache_dtype.value,
    )
    if model is None:
        note_model()
    is_chat = chat or system is not None or guide_options.tools is not None
    with LLM(model, device=device.value, dtype=dtype, speculation=chosen, engine=engine) as llm:
        run = Run(llm, guide, sampling, beam_width, is_chat, system, read_tools(guide_options.tools))
        if guide is not None:
            with naming(guide_options.source):
                llm.compile(guide).result()
        if "max_tokens" in given:
            note_room(llm, named, run)
        with traced(llm, trace):
            outputs = run(named)
        if stats_json is not None:
            write_statistics(stats_json, llm, named, outputs)
    finish(outputs)


def traced(llm: Any, path: Path | None) -> AbstractContextManager[object]:
    """Return a context that records a trace to `path`, or does nothing if `path` is None."""
    if path is None:
        return nullcontext()
    from weft.trace import recording

    return recording(llm.runtime, path)


def write_statistics(path: Path, llm: Any, prompts: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Write the file of --stats-json."""
    from weft.cli.statistics import statistics
    from weft.core.files import write_whole

    write_whole(path, (json.dumps(statistics(llm, prompts, outputs), indent=2) + "\n").encode())
