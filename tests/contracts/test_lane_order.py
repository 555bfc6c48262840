"""What an iteration's forwards wait for: each other and masks, not the copies that the grammar needs."""

from __future__ import annotations

import pytest

from weft import LLM, Speculation
from weft.engine.runner.step import GuidedLogits, Plan
from weft.runtime.dump import GraphDump
from weft.runtime.recorder import PYTHON

SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3, guide_drafts=True),
    "forced": Speculation.forced(num_draft_tokens=2),
    "forced+eagle3": Speculation.forced(Speculation.eagle3(num_draft_tokens=3, guide_drafts=True)),
}


def waits_for(dump: GraphDump, node: int) -> set[int]:
    """Everything that has run when the node begins."""
    before: set[int] = set()
    left = [node]
    while left:
        found = [a for a, b in dump.edges if b == left[-1] and a not in before]
        left.pop()
        before.update(found)
        left += found
    return before


@pytest.mark.parametrize("name", sorted(SPECULATIONS))
@pytest.mark.parametrize("guided", [True, False])
def test_no_forward_waits_for_a_copy_that_it_does_not_need(name: str, guided: bool) -> None:
    speculation = SPECULATIONS[name]
    drafts = speculation.max_draft_tokens
    with LLM(device="cpu", speculation=speculation) as llm:
        masks_drafts = "eagle3" in name
        guides = (
            (GuidedLogits.DRAFTS if masks_drafts else GuidedLogits.TARGET) if guided else GuidedLogits.NONE
        )
        plan = Plan(1, drafts, guides)
        dump = llm.engine.graphs.dump(plan)
    functions = [label.removeprefix(PYTHON).partition(":")[0] for _, label in dump.nodes]
    copies = {
        i for i, (kind, _) in enumerate(dump.nodes) if kind == "memcpy" or functions[i] == "_copy_masks"
    }
    assert bool(copies) == guided
    host_work = copies | {i for i, (kind, _) in enumerate(dump.nodes) if kind == "host"}
    assert bool(host_work) == (guided or "forced" in name)
    forwards = [i for i, name in enumerate(functions) if name in ("target_forward", "draft_forward")]
    assert len(forwards) > 10
    for forward in forwards:
        seen = waits_for(dump, forward)
        # Host work before what the forward itself needs: it ends in a mask or in proposals that it does not read.
        masked = {
            i
            for node in seen
            if functions[node] in ("_apply_masks", "pick_draft", "take_proposals")
            for i in waits_for(dump, node)
        }
        assert (host_work & seen) <= masked, f"{dump.nodes[forward]} waits for the grammar"
    target = [i for i in forwards if functions[i] == "target_forward"]
    assert not any(host_work & waits_for(dump, node) for node in target)


def test_without_drafts_no_commit_is_waited_for() -> None:
    """The iteration has none: it owes it. With drafts it has one, beside the first draft's forward."""
    found = {}
    for name in ("none", "eagle3"):
        with LLM(device="cpu", speculation=SPECULATIONS[name]) as llm:
            for drafts in {0, SPECULATIONS[name].max_draft_tokens}:
                dump = llm.engine.graphs.dump(
                    Plan(1, drafts, GuidedLogits.DRAFTS if drafts else GuidedLogits.TARGET)
                )
                labels = [label for _, label in dump.nodes]
                found[name, drafts] = labels.count("weft.guided.fetch"), labels.count("weft.guided.commit")
    assert found == {("none", 0): (1, 0), ("eagle3", 0): (1, 0), ("eagle3", 3): (1, 1)}
