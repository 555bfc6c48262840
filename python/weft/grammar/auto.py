"""The library that enforces more of a guide.

Both are asked what of a JSON schema they would not enforce. One that enforces all of it compiles it; where neither
does, a strict guide is an error with both reasons, and another goes to the one that leaves fewer keywords out. Where
both do equally well, a schema goes to LLGuidance, which compiles it in a few milliseconds where XGrammar may take
seconds; a guide that must know how answers end (`Guide.closes`) gets XGrammar.
"""

from __future__ import annotations

from weft.errors import GuideError, InterfaceError
from weft.grammar.base import Attempt, Backend, CompiledGuide
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.llguidance.backend import LLGuidanceBackend
from weft.grammar.llguidance.backend import not_enforced as llguidance_notes
from weft.grammar.notes import Notes
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.grammar.xgrammar.translate import not_enforced as xgrammar_notes

XGRAMMAR, LLGUIDANCE = "xgrammar", "llguidance"
WORDS = {XGRAMMAR: "XGrammar", LLGUIDANCE: "LLGuidance"}


def in_order(guide: Guide) -> tuple[str, ...]:
    """The libraries that may compile a guide, in the order in which they are asked."""
    if guide.kind == "lark":
        return (LLGUIDANCE,)
    if guide.closes or guide.kind not in ("json_schema", "regex", "choice"):
        return (XGRAMMAR,)
    if guide.kind != "json_schema":
        return (XGRAMMAR, LLGUIDANCE)
    left_out = {
        LLGUIDANCE: Notes.of(llguidance_notes(guide)).count,
        XGRAMMAR: Notes.of(xgrammar_notes(guide)).count,
    }
    return tuple(sorted(left_out, key=left_out.__getitem__))


class AutoBackend:
    """Compiles each guide with the library that enforces more of it, for one vocabulary."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        limits: CompileLimits | None = None,
        untrusted: bool = False,
        threads: int | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self._xgrammar = XGrammarBackend(vocabulary, limits=limits, untrusted=untrusted, threads=threads)
        self.libraries: dict[str, Backend] = {XGRAMMAR: self._xgrammar}
        self._missing = ""  # why there is no LLGuidance
        try:
            self.libraries[LLGUIDANCE] = LLGuidanceBackend(
                vocabulary, limits=limits, untrusted=untrusted, threads=threads
            )
        except InterfaceError as error:
            self._missing = str(error)

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` where no library can, with the reason of each."""
        return self.choose(guide, lambda name, part: self.libraries[name].compile(part))

    def choose(self, guide: Guide, attempt: Attempt) -> CompiledGuide:
        """`compile`, by way of `attempt`."""
        order = in_order(guide)
        if order == (XGRAMMAR,):
            return attempt(XGRAMMAR, guide)
        reasons = []
        for name in order:
            try:
                return self._with(name, guide, attempt)
            except GuideError as error:
                reasons.append(str(error).rstrip("."))
        if len(order) == 1:
            raise GuideError(reasons[0])
        raise GuideError(f"no grammar library can express the guide. {'. '.join(reasons)}")

    def restore(self, guide: Guide, text: str, notes: tuple[str, ...]) -> CompiledGuide:
        """What XGrammar wrote; LLGuidance writes nothing."""
        return self._xgrammar.restore(guide, text, notes)

    def _with(self, name: str, guide: Guide, attempt: Attempt) -> CompiledGuide:
        if name not in self.libraries:
            raise GuideError(self._missing)
        try:
            return attempt(name, guide)
        except GuideError as error:
            raise GuideError(f"{WORDS[name]}: {error}") from None
