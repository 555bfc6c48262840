"""Random drafters that fit a checkpoint: they draft badly, which exercises everything behind a refused draft."""

from __future__ import annotations

from pathlib import Path

from checkpoints import save_draft_model, save_eagle3, save_mtp
from e2e.conftest import Checkpoint


def save_random_drafters(path: Path, checkpoint: Checkpoint) -> Path:
    """Save one of each kind in `path`, under the names that `DRAFTERS` expects; returns `path`."""
    config = checkpoint.model.config
    save_eagle3(path / "eagle3", config.vocab_size, config.hidden_size, config.num_hidden_layers)
    save_mtp(path / "mtp", config.vocab_size, config.hidden_size)
    save_mtp(path / "chain", config.vocab_size, config.hidden_size, modules=8)
    save_draft_model(path / "draft")
    return path
