"""EAGLE3: one decoder layer that reads three of the target's hidden states and drafts from a pruned vocabulary."""

from __future__ import annotations

from pathlib import Path

from weft.errors import ModelError
from weft.models.eagle3_head import Eagle3Head
from weft.spec.base import DrafterContext
from weft.spec.recurrent import RecurrentDrafter


class Eagle3(RecurrentDrafter):
    """Drafter of an EAGLE3 head; `directory` is where a model directory keeps its own."""

    directory = "eagle3"

    @classmethod
    def load(cls, context: DrafterContext) -> Eagle3:
        """The head at `speculation.path`, or the one in the model directory's `eagle3/`."""
        given = context.speculation.path
        path = Path(given) if given else context.model_path / cls.directory
        if not path.is_dir():
            raise ModelError(
                f"{path}: no EAGLE3 head there; give its directory to Speculation.eagle3(path), "
                "or put it into the model directory as eagle3/"
            )
        head = Eagle3Head.load(path, context.target)
        return cls(head, head.allocate_kv(context.num_pages, context.page_size))
