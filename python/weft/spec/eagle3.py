"""EAGLE3: one decoder layer that reads hidden states of several target layers and drafts from a pruned vocabulary."""

from __future__ import annotations

from pathlib import Path

from weft.config import Speculation
from weft.errors import ModelError
from weft.models.config import ModelConfig
from weft.models.eagle3_head import Eagle3Head
from weft.spec.base import DrafterContext
from weft.spec.recurrent import RecurrentDrafter


class Eagle3(RecurrentDrafter):
    """Drafts with an EAGLE3 head. Without a path, the head is in the subdirectory `directory` of the target's model
    directory."""

    directory = "eagle3"

    @classmethod
    def find(cls, speculation: Speculation, model_path: Path, target: ModelConfig) -> Path:
        """The directory of the head. Raises `ModelError` if there is none."""
        path = Path(speculation.path) if speculation.path else model_path / cls.directory
        if not path.is_dir():
            raise ModelError(
                f"{path}: no EAGLE3 head there; give its directory to Speculation.eagle3(path), "
                "or put it into the model directory as eagle3/"
            )
        return path

    @classmethod
    def load(cls, context: DrafterContext) -> Eagle3:
        """Load the head from `speculation.path`, or from `eagle3/` in the model directory. Raises `ModelError`."""
        path = cls.find(context.speculation, context.model_path, context.target.config)
        head = Eagle3Head.load(path, context.target)
        return cls(head, head.allocate_kv(context.num_pages, context.page_size, context.kv_dtype))
