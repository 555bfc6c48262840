"""XGrammar where it can express a guide, else LLGuidance.

A guide that XGrammar would take with something left out goes to LLGuidance, which is said once for each guide by a
`GuideWarning`. Where LLGuidance can't either, XGrammar enforces what it can and warns of the rest, unless the guide is
strict.
"""

from __future__ import annotations

import warnings

from weft.errors import GuideError, InterfaceError
from weft.grammar.base import CompiledGuide
from weft.grammar.guide import Guide, GuideWarning
from weft.grammar.limits import CompileLimits
from weft.grammar.llguidance import LLGuidanceBackend
from weft.grammar.tokenizer import Vocabulary
from weft.grammar.xgrammar import XGrammarBackend
from weft.grammar.xgrammar_translate import ignored

# Kinds that both libraries know, each with means of its own.
SHARED = ("json_schema", "regex", "choice")


class AutoBackend:
    """Compiles each guide with the library that can express it, for one vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, *, limits: CompileLimits | None = None, untrusted: bool = False
    ) -> None:
        self.vocabulary = vocabulary
        self._xgrammar = XGrammarBackend(vocabulary, limits=limits, untrusted=untrusted)
        self._llguidance: LLGuidanceBackend | str  # or why there is none
        try:
            self._llguidance = LLGuidanceBackend(vocabulary, limits=limits, untrusted=untrusted)
        except InterfaceError as error:
            self._llguidance = str(error)

    def prepare(self) -> None:
        """Wait for the process that tries guides for XGrammar."""
        self._xgrammar.prepare()

    def close(self) -> None:
        """End the process that tries guides for XGrammar."""
        self._xgrammar.close()

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` where neither library can, with both reasons."""
        if guide.kind == "lark":
            return self._second(guide)
        if guide.kind not in SHARED:
            return self._xgrammar.compile(guide)
        lines = ignored(guide)
        if not lines:
            try:
                return self._xgrammar.compile(guide)
            except GuideError as error:
                reason = str(error)
        else:
            reason = "; ".join(lines)
        try:
            compiled = self._second(guide)
        except GuideError as error:
            if lines and not guide.strict:
                return self._xgrammar.compile(guide)
            raise GuideError(
                f"no grammar library can express the guide. XGrammar: {reason.rstrip('.')}. {error}"
            ) from None
        warnings.warn(f"LLGuidance is used for a guide, since XGrammar: {reason}", GuideWarning, stacklevel=3)
        return compiled

    def _second(self, guide: Guide) -> CompiledGuide:
        if isinstance(self._llguidance, str):
            raise GuideError(self._llguidance)
        try:
            return self._llguidance.compile(guide)
        except GuideError as error:
            raise GuideError(f"LLGuidance: {error}") from None
