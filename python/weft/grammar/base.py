"""The interface between the engine and grammars: a backend compiles guides, and a compiled guide makes matchers.

A `Matcher` follows one sequence of tokens, natively (`csrc/include/weft/matcher.h`). It has `accept(token)`,
`validate(tokens)`, `fill(row)`, `rollback(count)`, `fork()`, `reset()`, `is_terminated()` and `forced(capacity)`,
which returns tokens that spell the text that must follow whatever is sampled. A failing matcher raises
`GuideStateError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from weft._core import ClosingTables, Matcher, python_matcher
from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.interfaces import PythonMatcher
from weft.grammar.vocabulary.tokenizer import Vocabulary

__all__ = [
    "NO_REQUEST",
    "Attempt",
    "Backend",
    "Chooser",
    "Closes",
    "CompileParts",
    "CompiledGuide",
    "Matcher",
    "Opening",
    "Prepared",
    "Preparing",
    "wrap_matcher",
]


@dataclass(frozen=True)
class Opening:
    """The facts of a request that its matcher may use: the tokens of the prompt, and the most tokens of the answer
    (None: unknown)."""

    prompt: Sequence[int] = ()
    room: int | None = None


NO_REQUEST = Opening()


class CompiledGuide(Protocol):
    """A guide, compiled for one vocabulary."""

    @property
    def guide(self) -> Guide:
        """The guide that was compiled."""

    @property
    def backend(self) -> str | None:
        """The registry's name of the grammar library that compiled it; None where no library did."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The parts of the guide that are not enforced, one line each, with the keyword and its place; the last line
        may count the rest. Empty for a strict guide."""

    @property
    def vocab_size(self) -> int:
        """Bits of a mask row."""

    @property
    def memory_bytes(self) -> int:
        """The approximate bytes that it holds."""

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher at the start of the guide. Raises `GuideError` where this request can't have one."""


class CompileParts(Protocol):
    """The context in which a guide is compiled that no grammar library compiles (the registry's "guides")."""

    vocabulary: Vocabulary

    @property
    def time_left_s(self) -> float:
        """Seconds until the compile's time is over, counted while this process runs. A compile that can be stopped
        should stop then."""

    def compile_part(self, guide: Guide) -> CompiledGuide:
        """Compile a guide that is a part of this guide, on the same thread. Raises `GuideError`."""


class Backend(Protocol):
    """A grammar library. Its constructor takes a `Vocabulary` and these keywords:

    - `limits`: the `CompileLimits`.
    - `untrusted`: whether clients that are not trusted send the guides.
    - `threads`: the threads of one compile. None is the library's default; with 1 it starts none, so that the process
      can be forked.

    `compile` is called by several threads at once. A backend for some kinds of guides only names them as `kinds`
    (`Guide.kind`), and refuses others with `GuideError`.

    It need not protect its process from a guide: untrusted guides are compiled in a trial process first
    (`weft.grammar.compile.trial`), and on threads with large stacks (`weft.grammar.compile.stacks`).
    """

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` for a guide that does not compile, or that no text satisfies."""


Attempt = Callable[[str, Guide], CompiledGuide]
"""Compiles a guide with the library of this name. Raises `GuideError` where that library can't, or is not allowed to.
"""


@runtime_checkable
class Chooser(Protocol):
    """A backend that chooses among several libraries for each guide.

    All its compiles go through `attempt`. So a trial can try each library alone, and check the result, before the
    next library is tried. The chosen library compiles the guide again, alone.
    """

    @property
    def libraries(self) -> Mapping[str, Backend]:
        """The libraries, by name."""

    def choose(self, guide: Guide, attempt: Attempt) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` where no library can."""


@runtime_checkable
class Warming(Protocol):
    """A backend that imports its library on first use."""

    def warm_up(self) -> None:
        """Import it now."""


@dataclass(frozen=True)
class Prepared:
    """A guide in the form that a library reads: a text, of a kind that the library knows, and notes of the parts that
    it does not enforce."""

    kind: str
    text: str
    notes: tuple[str, ...] = ()


@runtime_checkable
class Preparing(Protocol):
    """A backend whose work outside its library can be done ahead, also in another process: `compile` equals `build`
    of the result of `prepare`."""

    def prepare(self, guide: Guide) -> Prepared:
        """Translate a guide. Raises `GuideError`."""

    def build(self, guide: Guide, prepared: Prepared) -> CompiledGuide:
        """Compile the result of `prepare`. Raises `GuideError`."""


@runtime_checkable
class Closes(Protocol):
    """A compiled guide whose shortest endings can be computed."""

    def closing(self, text: str | None = None) -> ClosingTables:
        """The tables of shortest endings, computed by the first call and kept. `text` is the text that the guide's
        library read, where the caller has it. Raises `GuideError` for a grammar that is too complex."""


def wrap_matcher(matcher: PythonMatcher, factory: Callable[[], PythonMatcher] | None = None) -> Matcher:
    """The native handle of a matcher written in Python. `factory` makes another one at its start, for replays. Raises
    `GuideError` for an object that is not a matcher."""
    try:
        return python_matcher(matcher, factory)
    except TypeError as error:
        raise GuideError(f"{type(matcher).__name__} can't be a matcher: {error}") from error
    except Exception as error:  # raised by the matcher's own `is_terminated`
        raise GuideError(
            f"{type(matcher).__name__} can't say whether it has ended: {type(error).__name__}: {error}"
        ) from error
