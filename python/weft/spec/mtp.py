"""Multi-token prediction: one module used recurrently for every draft, or one module for each draft."""

from __future__ import annotations

from pathlib import Path

from weft.errors import ModelError
from weft.models.mtp_module import MtpModules
from weft.spec.base import DrafterContext
from weft.spec.mtp_chain import MtpChain
from weft.spec.recurrent import RecurrentDrafter


class Mtp(RecurrentDrafter):
    """Drafter of one MTP module, which reads its own output from the second draft on; `directory` is where a model
    directory keeps its own."""

    directory = "mtp"

    @classmethod
    def load(cls, context: DrafterContext) -> Mtp | MtpChain:
        """The modules at `speculation.path`, in the model directory's `mtp/`, or in the target's own checkpoint.

        A checkpoint of several modules makes no more drafts than it has modules; more are refused.
        """
        path = _directory(context)
        modules = MtpModules.load(path, context.target)
        kv = modules.allocate_kv(context.num_pages, context.page_size)
        count, drafts = len(modules.modules), context.speculation.max_draft_tokens
        if count == 1:
            return cls(modules, kv)
        if drafts > count:
            raise ModelError(
                f"{path}: the checkpoint has {count} modules, each for one draft; "
                f"num_draft_tokens is {drafts}, it must be at most {count}"
            )
        return MtpChain(modules, kv, drafts, context.num_slots)


def _directory(context: DrafterContext) -> Path:
    given, own = context.speculation.path, context.model_path / Mtp.directory
    if given or own.is_dir():
        path = Path(given) if given else own
        if not path.is_dir():
            raise ModelError(f"{path}: no such directory; give that of MTP modules to Speculation.mtp(path)")
        return path
    if not context.target.config.num_mtp_modules:
        raise ModelError(
            f"{context.model_path}: no MTP modules there; give their directory to Speculation.mtp(path), "
            "or put it into the model directory as mtp/"
        )
    return context.model_path
