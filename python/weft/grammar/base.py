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
    """Facts about a request for its matcher: the prompt's tokens, and the maximum number of answer tokens (None:
    unknown)."""

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
        """The parts of the guide that are not enforced. Each line has a keyword and its JSON pointer; the last line
        may only count further parts. Empty for a strict guide."""

    @property
    def vocab_size(self) -> int:
        """Bits of a mask row."""

    @property
    def memory_bytes(self) -> int:
        """The approximate bytes that it holds."""

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher at the start of the guide. Raises `GuideError` where this request can't have one."""


class CompileParts(Protocol):
    """Passed to the compile functions of the registry's "guides", the kinds that no grammar library compiles."""

    vocabulary: Vocabulary

    @property
    def time_left_s(self) -> float:
        """Seconds left of the compile's time limit. Time in which this process does not run is not counted. A compile
        that can stop should stop when none is left."""

    def compile_part(self, guide: Guide) -> CompiledGuide:
        """Compile a nested guide on the calling thread. Raises `GuideError`."""


class Backend(Protocol):
    """A grammar library. Its constructor takes a `Vocabulary` and these keywords:

    - `limits`: the `CompileLimits`.
    - `untrusted`: whether clients that are not trusted send the guides.
    - `threads`: the number of threads for one compile. None is the library's default. With 1 the library starts no
      thread, so the process can still fork.

    `compile` must be thread-safe. A backend that supports only some kinds of guides lists them in `kinds`
    (`Guide.kind`), and raises `GuideError` for the others.

    A backend need not protect its process from a bad guide. `GuideCompiler` compiles an untrusted guide in a trial
    process first (`weft.grammar.compile.trial`). Its threads have large stacks (`weft.grammar.compile.stacks`).
    """

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` for a guide that does not compile, or that no text satisfies."""


Attempt = Callable[[str, Guide], CompiledGuide]
"""Compiles a guide with the library of this name. Raises `GuideError` where that library can't, or is not allowed to.
"""


@runtime_checkable
class Chooser(Protocol):
    """A backend that chooses among several libraries for each guide.

    `choose` makes every compile through `attempt`. So the caller can run one library at a time, and check its result
    before the next one is tried.
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
    """A guide translated for a library: the input text, its kind, and notes on the parts that are not enforced."""

    kind: str
    text: str
    notes: tuple[str, ...] = ()


@runtime_checkable
class Preparing(Protocol):
    """A backend that compiles in two steps: `prepare` translates, and `build` calls the library. `prepare` may run
    ahead, also in another process. `compile` does both."""

    def prepare(self, guide: Guide) -> Prepared:
        """Translate a guide. Raises `GuideError`."""

    def build(self, guide: Guide, prepared: Prepared) -> CompiledGuide:
        """Compile the result of `prepare`. Raises `GuideError`."""


@runtime_checkable
class Closes(Protocol):
    """A compiled guide that can compute shortest endings: the fewest tokens that complete an answer."""

    def closing(self, text: str | None = None) -> ClosingTables:
        """Return the tables of shortest endings. The first call computes and caches them. `text` is the library's
        input text (`Prepared.text`), if the caller has it. Raises `GuideError` for a grammar with parts that are not
        text, and `ValueError` for one that is too complex."""


def wrap_matcher(matcher: PythonMatcher, factory: Callable[[], PythonMatcher] | None = None) -> Matcher:
    """Wrap a Python matcher as a native one. `factory` makes a fresh matcher. If `matcher` lacks `rollback`, `reset` or
    `fork`, a fresh one may receive the accepted tokens again. Raises `GuideError` for an object that is not a
    matcher."""
    try:
        return python_matcher(matcher, factory)
    except TypeError as error:
        raise GuideError(f"{type(matcher).__name__} can't be a matcher: {error}") from error
    except Exception as error:  # raised by the matcher's own `is_terminated`
        raise GuideError(
            f"{type(matcher).__name__} can't say whether it has ended: {type(error).__name__}: {error}"
        ) from error
