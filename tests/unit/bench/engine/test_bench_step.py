"""`weft bench step`: the bytes of an iteration, counted otherwise, and a small run. No timing is judged."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
import torch
from rich.console import Console

from weft.config import package_model_path
from weft.engine.runner.step import GuidedLogits, Plan
from weft.errors import InputError
from weft.models.base import PagedKV
from weft.models.eagle3_config import Eagle3Config
from weft.models.eagle3_head import Eagle3Head
from weft.models.llama import Llama
from weft.runtime import get as get_runtime
from weft_bench.engine import step
from weft_bench.engine.bandwidth import copy_bandwidth, target_size, traffic
from weft_bench.engine.models import SHAPES, Bench, HeadWeights, Shape, WeightsOnDevice, shape_of
from weft_bench.engine.paired import GUIDE, SIMULATED, Setting, Side
from weft_bench.engine.simulated import simulated_operations

TINY = Shape(layers=3, hidden=64, vocab=1024, draft_vocab=600)


@pytest.fixture(scope="module")
def bench() -> Any:
    made = Bench.random("cpu", TINY)
    yield made
    made.close()


class Counting:
    """What was taken of the weights, by name."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()

    def target(self, bench: Bench) -> WeightsOnDevice:
        counting = self

        class Weights(WeightsOnDevice):
            def take(self, name: str, *shape: int) -> torch.Tensor:
                counting.taken[name] += torch.Size(shape).numel()
                return super().take(name, *shape)

        return Weights(bench.model.config, 0, torch.device("cpu"))

    def head(self, bench: Bench) -> HeadWeights:
        counting = self

        class Weights(HeadWeights):
            def take(self, name: str, *shape: int) -> torch.Tensor:
                counting.taken[name] += torch.Size(shape).numel()
                return super().take(name, *shape)

        return Weights(bench.model.config, 0, torch.device("cpu"), bench.head.draft_vocab_size)


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_bytes_are_those_of_the_tensors_that_are_read(bench: Bench, num_drafts: int) -> None:
    """Weights as they are taken for a model, pages of a KV, the buffers of logits."""
    batch, context = 3, 32  # two whole pages
    target, head = Counting(), Counting()
    model = Llama(bench.model.config, target.target(bench))  # type: ignore[arg-type]
    with torch.inference_mode():
        weights: Any = head.head(bench)
        sizes = bench.head.aux_layers, bench.model.config.hidden_size, TINY.draft_vocab or 0
        Eagle3Head(Eagle3Config(bench.model.config, *sizes), weights, model)
    found = traffic(bench.model.config, bench.head, batch, num_drafts, context)

    del target.taken["model.embed_tokens.weight"]
    assert found.target == 4 * target.taken.total()
    once = head.taken.pop("fc.weight")
    assert found.head == (4 * (once + num_drafts * head.taken.total()) if num_drafts else 0)

    page = PagedKV.for_model(bench.model, 2, 16).page_bytes
    head_page = bench.head.allocate_kv(2, 16).page_bytes
    assert found.kv == batch * 2 * (page + num_drafts * head_page)

    side = Side(Setting(bench, batch, num_drafts), None)
    buffers = side.engine.graphs.buffers(Plan(batch, num_drafts))
    drafts = buffers.draft.logits_BD.nbytes if buffers.draft is not None else 0
    assert found.logits == buffers.logits_BTV.nbytes + num_drafts * drafts
    assert found.total == found.target + found.head + found.kv + found.logits
    side.engine.close()


def test_an_iteration_is_one_forward_of_the_target_and_one_of_the_head_for_each_draft(bench: Bench) -> None:
    side = Side(Setting(bench, 2, 3), GUIDE)
    side.block(2)
    plan = side.engine.graphs.plans[0]
    labels = Counter(label for _, label in side.engine.graphs.dump(plan).nodes)
    assert labels["target_forward: embed"] == 1 and labels["draft_forward: join_norms"] == 3
    side.engine.close()


def test_llama_8b_has_the_parameters_that_its_card_says() -> None:
    config = SHAPES["llama-8b-eagle3"].config(torch.bfloat16, 128256)
    assert target_size(config) + 128256 * 4096 == 8_030_261_248
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 8, 128)


def test_the_heads_vocabulary_is_pruned_and_its_tokens_are_the_targets(bench: Bench) -> None:
    d2t = bench.head.d2t
    assert d2t is not None and d2t.shape == (600,)
    ids = torch.arange(600) + d2t
    assert (ids.diff() > 0).all() and ids[511] == 511 and 599 < int(ids[-1]) < 1024


def test_bandwidth_is_what_a_copy_moves() -> None:
    runtime = get_runtime("cpu")
    assert 1e8 < copy_bandwidth(runtime, 1 << 22, repeat=3) < 1e13


def test_unknown_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="small, llama-8b-eagle3"):
        shape_of("llama")


@pytest.mark.parametrize("length", [3.0, 2.5])
def test_rows_say_what_forcing_tokens_adds(bench: Bench, length: float) -> None:
    counts = []
    for simulate in (None, length):
        engine = bench.engine(1, 64, 3, simulate)
        counts.append(len(engine.graphs.dump(Plan(1, 3, GuidedLogits.NONE)).nodes))
        engine.close()
    assert counts[1] - counts[0] == simulated_operations(length, 3)


def test_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "small", TINY)
    monkeypatch.setattr("weft_bench.engine.bandwidth.BUFFER_BYTES", {"cpu": 1 << 22})
    report = step.run("cpu", batches=[1, 2], iterations=8, context=16)
    assert [(row["drafts"], row["batch"], row["simulated"]) for row in report.rows] == [
        (0, 1, False),
        (0, 2, False),
        (3, 1, True),
        (3, 2, True),
    ]
    for row in report.rows:
        assert row["over_bound"] == pytest.approx(row["unguided_us"] / row["bound_us"], rel=0.02)
        assert row["bound_us"] == pytest.approx(
            row["read_mb"] * 1e3 / report.summary["bandwidth_gb_per_s"], rel=0.02
        )
        expected = SIMULATED if row["drafts"] else 1
        assert (row["simulated_kernels"] > 0) == row["simulated"]
        assert row["tokens_unguided"] == pytest.approx(expected, abs=0.2)
        assert row["itl_guided_us"] == pytest.approx(row["guided_us"] / row["tokens_guided"], rel=0.02)
        assert row["split_over_one"] > 0 and row["eager_over_one"] > 0
        assert row["over_device"] >= 1 and row["guided_over_device"] >= 1
        assert row["device_us"] > 0 and row["guided_device_us"] > 0
        assert 16 < row["context"] < 16 + step.ROOM
    out = io.StringIO()
    report.show(Console(file=out, width=100))
    assert "simulated" in out.getvalue() and "True" in out.getvalue()


def test_a_models_own_drafts_are_verified() -> None:
    report = step.run("cpu", batches=[1], num_drafts=[2], iterations=8, model=package_model_path())
    (row,) = report.rows
    assert (row["shape"], row["simulated"], row["simulated_kernels"]) == ("weft-tiny", False, 0)
    assert 1 <= row["tokens_guided"] <= 3
    assert "simulated" not in report.summary and report.summary["weights"].startswith("weft-tiny")
