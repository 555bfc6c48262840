"""Runs a model of `support.families` in the whole engine, and compares its answers with transformers' own forwards.

An answer is checked by one forward over its prompt and itself: each token must be the best that is allowed after those
before it. So a wrong token can't hide behind a tie before it, and transformers' caches play no part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import xgrammar as xgr
from torch import Tensor

from support.engine.beam_oracle import Text, plain_search
from support.engine.checkpoints import save_draft_model, save_eagle3
from support.engine.references import make_guide
from support.families import save
from weft import LLM, EngineConfig, Output, SamplingParams, Speculation
from weft.client.builder import ModelSource
from weft.config import Graphs
from weft.core.beam_params import BeamParams
from weft.engine.scheduler.scheduler import Scheduler
from weft.models import layers, mixture
from weft.models.generic import calls, modules
from weft.models.generic.experts import pack_experts
from weft.models.memory import LayerMemory
from weft.ops.attention import Heads
from weft.ops.experts import Experts
from weft.registry import MODELS

ROUNDING = 5e-5
"""The largest difference of logits from transformers', relative to the largest logit."""

MAX_SEQ_LEN, PAGE_SIZE, CHUNK = 128, 8, 24
NUM_TOKENS = 12
FEW_PAGES = 11
"""Pages with which several of the texts can't be decoded together."""

REGEX = ("regex", "(ab|[0-9]{1,2}-)*END")
SCHEMA = (
    "json_schema",
    {
        "type": "object",
        "properties": {
            "level": {"enum": ["low", "middle", "high"]},
            "flags": {"type": "array", "items": {"type": "boolean"}},
            "count": {"type": "integer"},
        },
        "required": ["level", "flags", "count"],
    },
)
GUIDES = (None, SCHEMA, None, REGEX, None, None)
PROMPTS = (
    [5 + 7 * i % 90 for i in range(16)],
    [100 + 11 * i % 300 for i in range(9)],
    [20 + i for i in range(CHUNK + 16)],  # longer than a chunk
    [40, 41],
    [*[20 + i for i in range(20)], 9, 33, 71],  # begins as another
    [77],
)


@dataclass(frozen=True)
class Setting:
    """The settings of an engine for a run. `few_pages`: sequences are preempted."""

    drafter: str
    graphs: Graphs
    batch: int
    overlap: bool
    few_pages: bool

    def __str__(self) -> str:
        names = {"overlap": self.overlap, "few pages": self.few_pages}
        return " ".join(
            (self.drafter, self.graphs, str(self.batch), *(name for name in names if names[name]))
        )


@dataclass
class Results:
    """The parts of a run that were compared with transformers, and the largest difference of logits."""

    setting: Setting
    done: set[str] = field(default_factory=set)
    difference: float = 0.0
    num_accepted: int = 0
    facts: Facts | None = None


@dataclass(frozen=True)
class Facts:
    """Facts about a model for `docs/models.md`: its class in transformers, whether weft's own module runs it, and the
    kinds of its layers' memory and operations."""

    architecture: str
    is_own: bool
    memory: str
    parts: tuple[str, ...]

    @classmethod
    def of(cls, llm: LLM, operations: set[str]) -> Facts:
        config = llm.model_config
        parts, kinds = set(operations), Counter[str]()
        for layer in config.layer_memories:
            kinds.update(_kinds(layer))
            if layer.pages is not None:
                parts |= {"windows"} if layer.pages.window.size else set()
                if layer.pages.values_in_keys:
                    parts.add("latents")
                elif layer.pages.value_size != layer.pages.key_size:
                    parts.add("keys and values of different sizes")
        if len({layer.pages.width for layer in config.layer_memories if layer.pages is not None}) > 1:
            parts.add("layers of several sizes")
        memory = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
        is_own = config.architecture in MODELS and not config.why_generic
        return cls(config.architecture, is_own, memory, tuple(sorted(parts)))


def _kinds(layer: LayerMemory) -> Iterator[str]:
    """The kinds of memory that a layer has."""
    if layer.pages is not None:
        yield "pages"
    for _ in layer.state.convolutions if layer.state is not None else ():
        yield "convolution"
    for recurrence in layer.state.recurrences if layer.state is not None else ():
        rule = "delta rule" if recurrence.is_delta else "recurrence"
        yield f"{rule} (decay by {recurrence.decay.name.lower()})"


@contextmanager
def note_operations() -> Iterator[set[str]]:
    """Context that collects the names of the operations that a model calls, beyond plain attention."""
    noted: set[str] = set()

    def heads(*args: Any, **how: Any) -> Heads:
        noted.update({"soft caps"} if how["softcap"] else set())
        noted.update({"sink logits"} if how["sink_logits"] is not None else set())
        return Heads(*args, **how)

    def experts(*args: Any, **how: Any) -> Experts:
        noted.add("experts")
        return Experts(*args, **how)

    def packed(module: Any) -> Experts:
        noted.add("experts")
        return pack_experts(module)

    with (
        patch.object(calls, "Heads", heads),
        patch.object(layers, "Heads", heads),
        patch.object(mixture, "Experts", experts),
        patch.object(modules, "pack_experts", packed),
    ):
        yield noted


@dataclass(eq=False)
class Family:
    """A random checkpoint, its transformers network, and drafters for it."""

    name: str
    path: Path
    network: Any

    @classmethod
    def make(cls, name: str, settings: Mapping[str, Any], path: Path) -> Family:
        return cls(name, path, save(name, dict(settings), path))

    @cached_property
    def vocab_size(self) -> int:
        return int(self.network.get_output_embeddings().weight.shape[0])

    @cached_property
    def end_ids(self) -> list[int]:
        return list(ModelSource.of(self.path).text(self.vocab_size, MAX_SEQ_LEN).end_ids)

    @cached_property
    def compiler(self) -> xgr.GrammarCompiler:
        vocabulary = ModelSource.of(self.path).text(self.vocab_size, MAX_SEQ_LEN).vocabulary
        assert vocabulary is not None
        info = xgr.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_type=xgr.VocabType.RAW,
            vocab_size=self.vocab_size,
            stop_token_ids=self.end_ids,
        )
        return xgr.GrammarCompiler(info)

    @torch.inference_mode()
    def logits(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """transformers' logits [length, V] of whole texts. Layers are causal, so texts may be padded at the end."""
        longest = max(map(len, texts))
        padded = torch.tensor([[*text, *[3] * (longest - len(text))] for text in texts])
        logits = self.network(input_ids=padded, use_cache=False).logits.float()
        return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]

    def speculation(self, drafter: str) -> Speculation:
        """The settings of a drafter. A head or a draft model is random."""
        path = self.path / drafter
        if drafter == "eagle3":
            if not path.exists():
                config = ModelSource.of(self.path).model_config()
                save_eagle3(path, self.vocab_size, config.hidden_size, config.num_layers)
            return Speculation.eagle3(path, num_draft_tokens=3)
        if drafter == "draft_model":
            if not path.exists():
                save_draft_model(path, vocab_size=self.vocab_size)
            return Speculation.draft_model(path, num_draft_tokens=2)
        makers: dict[str, Callable[[], Speculation]] = {
            "none": Speculation.none,
            "beams": Speculation.none,
            "given": lambda: Speculation.given(num_draft_tokens=3),
            "ngram": lambda: Speculation.ngram(num_draft_tokens=3),
            "forced": lambda: Speculation.forced(Speculation.ngram(num_draft_tokens=3)),
            "lookahead": Speculation.lookahead,
        }
        return makers[drafter]()


def run(family: Family, setting: Setting) -> Results:
    """Answer texts in an engine with a setting, and check every answer."""
    engine = EngineConfig(
        graphs=setting.graphs,
        overlap=setting.overlap,
        max_batch=setting.batch,
        max_beam_width=2 if setting.drafter == "beams" else 1,
        max_seq_len=MAX_SEQ_LEN,
        page_size=PAGE_SIZE,
        prefill_chunk=CHUNK,
        num_pages=FEW_PAGES if setting.few_pages else None,
        max_num_tokens=2 * CHUNK,
        num_snapshots=2 * len(PROMPTS),
        policy="max_utilization" if setting.few_pages else "guaranteed_no_evict",
    )
    with (
        note_operations() as operations,
        count_preemptions() as preempted,
        LLM(family.path, device="cpu", engine=engine, speculation=family.speculation(setting.drafter)) as llm,
    ):
        checked = _Run(family, llm, Results(setting))
        checked.answers()
        if setting.few_pages:
            assert preempted, "no sequence was preempted"
            checked.results.done.add("preemption")
        if setting.drafter == "beams":
            checked.beams()
        checked.context_logits()
        replays, iterations = llm.num_graph_replays, llm.num_iterations
        checked.results.facts = Facts.of(llm, operations)
        assert iterations and (replays >= iterations if setting.graphs == "one" else not replays)
        return checked.results


@contextmanager
def count_preemptions() -> Iterator[list[int]]:
    """Context that lists the preempted sequences."""
    preempt, preempted = Scheduler.preempt, list[int]()

    def noted(scheduler: Scheduler, sequence: Any, *args: Any, **how: Any) -> None:
        preempted.append(sequence.id)
        preempt(scheduler, sequence, *args, **how)

    with patch.object(Scheduler, "preempt", noted):
        yield preempted


@dataclass
class _Run:
    family: Family
    llm: LLM
    results: Results

    def answers(self) -> None:
        """Texts with and without guides, several sequences and log-probabilities; then texts that continue them."""
        sampling = [
            SamplingParams(
                temperature=0.0,
                max_tokens=NUM_TOKENS,
                min_tokens=0 if guide else NUM_TOKENS,
                n=2 if i >= 4 else None,
                logprobs=2 if i % 3 == 0 else None,
            )
            for i, guide in enumerate(GUIDES)
        ]
        guides = [None if guide is None else make_guide(guide) for guide in GUIDES]
        outputs = self.llm.generate(PROMPTS, sampling, guide=guides)
        self.check(outputs, GUIDES)
        self.results.done |= {"guided", "not guided", "several sequences", "log-probabilities", "chunks"}
        if self.results.setting.drafter == "given":
            given = [[*o.token_ids[:5], 3, *o.token_ids[6:]] for o in outputs]
            again = self.llm.generate(PROMPTS, sampling, guide=guides, given=given)
            self.check(again, GUIDES)
            assert self.results.num_accepted
        following = [[*prompt, *o.token_ids[:9], 9] for prompt, o in zip(PROMPTS, outputs, strict=True)]
        more = self.llm.generate(following, sampling[0])
        self.check(more, [None] * len(more))
        usage = self.llm.engine.kv.usage()
        if sum(o.stats.reused_tokens for o in more) and usage.reused_pages:
            self.results.done.add("found prefixes")
        else:
            assert self.results.setting.few_pages, "no prefix was found"
        assert bool(usage.snapshot_hits) == self.llm.model_config.has_states or self.results.setting.few_pages

    def check(self, outputs: Sequence[Output], guides: Sequence[tuple[str, Any] | None]) -> None:
        """Check that each token of each answer is the best one."""
        answers = [(each, guide) for o, guide in zip(outputs, guides, strict=True) for each in o.outputs]
        texts = [[*each.prompt_token_ids, *each.token_ids] for each, _ in answers]
        for (each, guide), logits in zip(answers, self.family.logits(texts), strict=True):
            assert each.error is None, each.error
            first = len(each.prompt_token_ids) - 1
            self.check_answer(each, logits[first:-1], guide)
            self.results.num_accepted += each.stats.accepted_drafts

    def check_answer(self, output: Output, logits: Tensor, guide: tuple[str, Any] | None) -> None:
        """Check an answer by the logits [tokens, V] before each of its tokens."""
        rounding = ROUNDING * logits.abs().max().item()
        matcher = None
        if guide is not None:
            grammar = make_guide(guide).grammar()
            matcher = xgr.GrammarMatcher(self.family.compiler.compile_grammar(grammar))
        mask = xgr.allocate_token_bitmask(1, logits.shape[1])
        for i, (token, row) in enumerate(zip(output.token_ids, logits, strict=True)):
            allowed = row.clone()
            if matcher is None:
                allowed[self.family.end_ids] = -math.inf
            else:
                matcher.fill_next_token_bitmask(mask)
                xgr.apply_token_bitmask_inplace(allowed[None], mask, vocab_size=logits.shape[1])
                assert matcher.accept_token(token), f"token {i} is {token}, which the guide forbids"
            best = allowed.max()
            assert best - allowed[token] <= 2 * rounding, (
                f"{self.results.setting}: prompt {output.prompt_token_ids}, answer {output.token_ids}: token {i} is "
                f"{token} with logit {allowed[token]:.5f}, but {int(allowed.argmax())} has {best:.5f}"
            )
        assert len(output.token_ids) == NUM_TOKENS or output.token_ids[-1] in self.family.end_ids
        expected = logits.log_softmax(1)
        for i, entry in enumerate(output.logprobs or ()):
            assert abs(entry.logprob - expected[i, output.token_ids[i]]) <= 2 * rounding
            for token, value in entry.top.items():
                assert abs(value - expected[i, token]) <= 2 * rounding

    def context_logits(self) -> None:
        """The logits of prompts, one of them longer than a chunk."""
        sampling = SamplingParams(temperature=0.0, max_tokens=3, min_tokens=3)
        outputs = self.llm.generate(PROMPTS[2:4], sampling, return_context_logits=True)
        for output, expected in zip(outputs, self.family.logits(PROMPTS[2:4]), strict=True):
            logits = output.context_logits
            assert logits is not None
            difference = ((logits - expected).abs().max() / expected.abs().max()).item()
            self.results.difference = max(self.results.difference, difference)
            assert difference < ROUNDING
        self.results.done.add("logits of prompts")

    def beams(self) -> None:
        """A search by two beams finds what a plain one over transformers' logits finds."""
        known: dict[Text, list[float]] = {}
        prompt = PROMPTS[0]

        def model(text: Text) -> list[float]:
            if text not in known:
                logits = self.family.logits([[*prompt, *text]])[0][-1]
                known[text] = logits.log_softmax(0).tolist()
            return known[text]

        params = BeamParams(2, length_penalty=0.5)
        expected = plain_search(model, params, 5, True, set(self.family.end_ids))
        sampling = SamplingParams(max_tokens=5, temperature=0.0)
        output = self.llm.generate(prompt, sampling, beam_width=2, length_penalty=0.5)
        scores = [score for score, _ in expected]
        rounding = 1e-3
        for answer, (score, text) in zip(output.hypotheses, expected, strict=True):
            assert abs(answer.score - score) < rounding
            if all(abs(score - other) > 2 * rounding for other in scores if other != score):
                assert answer.token_ids == list(text)
        self.results.done.add("beams")
