"""All drafters: those of weft-tiny, those on the host, and random ones. Random drafters draft badly, which exercises
rejection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.engine.checkpoints import save_draft_model, save_eagle3, save_mtp
from support.engine.references import Checkpoint
from weft import Speculation, registry


def save_random_drafters(path: Path, checkpoint: Checkpoint) -> Path:
    """Save a random drafter of each kind in `path`, under the names that `DRAFTERS` expects. Returns `path`."""
    config = checkpoint.model.config
    save_eagle3(path / "eagle3", config.vocab_size, config.hidden_size, config.num_hidden_layers)
    save_mtp(path / "mtp", config.vocab_size, config.hidden_size)
    save_mtp(path / "chain", config.vocab_size, config.hidden_size, modules=8)
    save_draft_model(path / "draft")
    return path


DRAFTERS: dict[str, Callable[[Path, int], Speculation]] = {
    "eagle3": lambda _, k: Speculation.eagle3(num_draft_tokens=k),
    "eagle3-unguided": lambda _, k: Speculation.eagle3(num_draft_tokens=k, guide_drafts=False),
    "mtp": lambda _, k: Speculation.mtp(num_draft_tokens=k),
    "draft_model": lambda _, k: Speculation.draft_model(num_draft_tokens=k),
    "ngram": lambda _, k: Speculation.ngram(num_draft_tokens=k),
    "ngram-unguided": lambda _, k: Speculation.ngram(num_draft_tokens=k, guide_drafts=False),
    "forced": lambda _, k: Speculation.forced(num_draft_tokens=k),
    "forced+eagle3": lambda _, k: Speculation.forced(Speculation.eagle3(num_draft_tokens=k)),
    "forced+ngram": lambda _, k: Speculation.forced(Speculation.ngram(num_draft_tokens=k)),
    "random eagle3": lambda p, k: Speculation.eagle3(p / "eagle3", num_draft_tokens=k),
    "random mtp": lambda p, k: Speculation.mtp(p / "mtp", num_draft_tokens=k, guide_drafts=True),
    "random mtp chain": lambda p, k: Speculation.mtp(p / "chain", num_draft_tokens=k),
    "random draft_model": lambda p, k: Speculation.draft_model(p / "draft", num_draft_tokens=k),
}


def _named(name: str) -> Callable[[Path, int], Speculation]:
    return lambda _, k: Speculation.named(name, num_draft_tokens=k)


# All other drafters of the registry. One with weights must find weft-tiny's in their directory, or be listed above.
_KNOWN = {name for make in DRAFTERS.values() for name in make(Path("random"), 1).drafters}
DRAFTERS |= {name: _named(name) for name in registry.names("drafters") if name not in _KNOWN | {"given"}}

# Drafters that continue after the expected answer of a request.
BEHIND_GIVEN: dict[str, Callable[[int], Speculation]] = {
    "given": lambda k: Speculation.given(num_draft_tokens=k),
    "given+ngram": lambda k: Speculation.given(Speculation.ngram(num_draft_tokens=k)),
    "given+eagle3": lambda k: Speculation.given(Speculation.eagle3(num_draft_tokens=k, guide_drafts=True)),
    "given+forced+eagle3": lambda k: Speculation.given(
        Speculation.forced(Speculation.eagle3(num_draft_tokens=k))
    ),
    "given+forced+ngram": lambda k: Speculation.given(
        Speculation.forced(Speculation.ngram(num_draft_tokens=k, guide_drafts=False))
    ),
}

# A selection of weft-tiny's drafters, for tests that take too long with all of them.
SPECULATIONS: dict[str, Speculation] = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "eagle3 unguided": Speculation.eagle3(num_draft_tokens=3, guide_drafts=False),
    "ngram": Speculation.ngram(num_draft_tokens=4),
    "forced+eagle3": Speculation.forced(Speculation.eagle3(num_draft_tokens=5)),
}
