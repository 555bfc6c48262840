"""The "auto" backend: for each guide it picks the library, XGrammar or LLGuidance, that enforces more of it.

For a JSON schema it counts the keywords that each library would not enforce, and tries the library with fewer first.
On a tie LLGuidance is first: it compiles a schema in milliseconds, and XGrammar may take seconds. A regex or a choice
goes to XGrammar first. Lark goes only to LLGuidance. All other kinds, and guides that need shortest endings
(`Guide.closes`), go only to XGrammar. If two libraries are tried and both fail, the error has both reasons.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

from weft import registry
from weft.errors import GuideError, InterfaceError
from weft.grammar.base import Attempt, Backend, CompiledGuide
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.notes import Notes
from weft.grammar.vocabulary.tokenizer import Vocabulary

if TYPE_CHECKING:
    from weft.grammar.xgrammar.backend import XGrammarBackend

XGRAMMAR, LLGUIDANCE = "xgrammar", "llguidance"
WORDS = {XGRAMMAR: "XGrammar", LLGUIDANCE: "LLGuidance"}


def in_order(guide: Guide) -> tuple[str, ...]:
    """The libraries that may compile a guide, in the order in which they are tried."""
    if guide.kind == "lark":
        return (LLGUIDANCE,)
    if guide.closes or guide.kind not in ("json_schema", "regex", "choice"):
        return (XGRAMMAR,)
    if guide.kind != "json_schema":
        return (XGRAMMAR, LLGUIDANCE)
    from weft.grammar.llguidance.backend import not_enforced as llguidance_notes

    left_out = Notes.of(llguidance_notes(guide)).count
    if left_out:
        from weft.grammar.xgrammar.translate import not_enforced as xgrammar_notes

        if Notes.of(xgrammar_notes(guide)).count < left_out:
            return (XGRAMMAR, LLGUIDANCE)
    return (LLGUIDANCE, XGRAMMAR)


class Libraries(Mapping[str, Backend]):
    """Grammar libraries by name, each imported and made for a vocabulary on first use. A library with an unexpected
    interface is absent; `missing` has the reason."""

    def __init__(self, names: tuple[str, ...], make: Callable[[str], Backend]) -> None:
        self.missing: dict[str, str] = {}
        self._names = names
        self._make = make
        self._made: dict[str, Backend] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Backend:
        with self._lock:
            if name in self._names and name not in self._made and name not in self.missing:
                try:
                    self._made[name] = self._make(name)
                except InterfaceError as error:
                    self.missing[name] = str(error)
            return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class AutoBackend:
    """Compiles guides for one vocabulary, each with the library that enforces more of it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        limits: CompileLimits | None = None,
        untrusted: bool = False,
        threads: int | None = None,
    ) -> None:
        self.vocabulary = vocabulary

        def make(name: str) -> Backend:
            library = registry.load("grammars", name)
            made = library(vocabulary, limits=limits, untrusted=untrusted, threads=threads)
            return cast("Backend", made)

        self.libraries = Libraries((XGRAMMAR, LLGUIDANCE), make)

    def warm_up(self) -> None:
        """Import and make the libraries ahead of the first guide."""
        len(self.libraries)  # counting them makes them

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` where no library can, with the reason of each."""
        return self.choose(guide, lambda name, part: self.libraries[name].compile(part))

    def choose(self, guide: Guide, attempt: Attempt) -> CompiledGuide:
        """Try the libraries in order, each by a call of `attempt`. Return the first compiled guide. Raises
        `GuideError` if all attempts fail."""
        order = in_order(guide)
        if order == (XGRAMMAR,):
            self._need(XGRAMMAR)
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
        """Rebuild a guide that XGrammar serialized; LLGuidance serializes none."""
        self._need(XGRAMMAR)
        return cast("XGrammarBackend", self.libraries[XGRAMMAR]).restore(guide, text, notes)

    def _with(self, name: str, guide: Guide, attempt: Attempt) -> CompiledGuide:
        self._need(name)
        try:
            return attempt(name, guide)
        except GuideError as error:
            raise GuideError(f"{WORDS[name]}: {error}") from None

    def _need(self, name: str) -> None:
        """Raise `GuideError` with the reason if a library is absent."""
        if name not in self.libraries:
            raise GuideError(self.libraries.missing[name])
