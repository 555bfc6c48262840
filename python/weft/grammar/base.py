"""What the engine knows of a grammar: guides are compiled, a compiled guide makes matchers.

A `Matcher` follows one sequence of tokens, natively (`csrc/include/weft/matcher.h`). It has `accept(token)`,
`validate(tokens)`, `fill(row)`, `rollback(count)`, `fork()`, `reset()`, `is_terminated()` and `forced(capacity)`,
tokens that spell what must follow whatever is sampled; where it fails it raises `GuideStateError`.
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
    """What a matcher may know of the request that it is for: the tokens of its prompt, and how many tokens its answer
    may have at most (None: it is not known)."""

    prompt: Sequence[int] = ()
    room: int | None = None


NO_REQUEST = Opening()


class CompiledGuide(Protocol):
    """A guide, compiled for one vocabulary."""

    @property
    def guide(self) -> Guide:
        """What was compiled."""

    @property
    def backend(self) -> str | None:
        """The name of the grammar library that compiled it, in the registry; None where none did."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the guide is not enforced, one line each, which names the keyword and its place; the last may count
        the rest. Empty where the guide is strict."""

    @property
    def vocab_size(self) -> int:
        """Bits of a mask row."""

    @property
    def memory_bytes(self) -> int:
        """What it holds, about."""

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher at the start of the guide. Raises `GuideError` where this request can't have one."""


class CompileParts(Protocol):
    """What a kind of guide that no grammar library compiles is compiled with (the registry's "guides").

    `time_left_s` is how long it is waited for: what can be stopped then is to be stopped.
    """

    vocabulary: Vocabulary

    @property
    def time_left_s(self) -> float:
        """Seconds in which this process runs."""

    def compile_part(self, guide: Guide) -> CompiledGuide:
        """Compile a guide that stands within the guide, on the same thread. Raises `GuideError`."""


class Backend(Protocol):
    """A grammar library. Made with a `Vocabulary` and the keywords `limits` (`CompileLimits`), `untrusted` (whether
    guides come from strangers) and `threads` (how many one compile may use; None: its own default, 1: it starts none,
    so that the process can be forked). `compile` may be called by several threads at once.

    One that takes only some kinds of guides names them as `kinds` (`Guide.kind`), and refuses others with `GuideError`.

    It needs no care for what a guide does to its process: strangers' guides are compiled in a trial process first
    (`weft.grammar.compile.trial`), and by threads with large stacks (`weft.grammar.compile.stacks`).
    """

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` for one that does not compile, or that nothing can satisfy."""


Attempt = Callable[[str, Guide], CompiledGuide]
"""Compiles a guide with the library of this name. Raises `GuideError` where that one can't, or may not."""


@runtime_checkable
class Chooser(Protocol):
    """A backend that has several libraries and chooses for each guide.

    All its compiles go through `attempt`, so that a trial can try each library by itself, and look at what comes out,
    before the next one is asked. The one that it settles for compiles the guide again, alone.
    """

    @property
    def libraries(self) -> Mapping[str, Backend]:
        """The libraries, by name."""

    def choose(self, guide: Guide, attempt: Attempt) -> CompiledGuide:
        """Compile a guide. Raises `GuideError` where no library can."""


@runtime_checkable
class Warming(Protocol):
    """A backend that imports what it needs when it is first needed."""

    def warm_up(self) -> None:
        """Import it now."""


@dataclass(frozen=True)
class Prepared:
    """A guide as a library reads it: a text, of a kind that the library knows, and what of the guide it leaves out."""

    kind: str
    text: str
    notes: tuple[str, ...] = ()


@runtime_checkable
class Preparing(Protocol):
    """A backend that can do all that its library does not do itself ahead, also in another process: `compile` is
    `build` of what `prepare` gave."""

    def prepare(self, guide: Guide) -> Prepared:
        """Raises `GuideError`."""

    def build(self, guide: Guide, prepared: Prepared) -> CompiledGuide:
        """Compile what was prepared. Raises `GuideError`."""


@runtime_checkable
class Closes(Protocol):
    """A compiled guide whose shortest ends are known."""

    def closing(self, text: str | None = None) -> ClosingTables:
        """What the first call works out, and keeps; `text` is what the guide's library read, where that is at hand.
        Raises `GuideError` where a grammar is beyond that."""


def wrap_matcher(matcher: PythonMatcher, factory: Callable[[], PythonMatcher] | None = None) -> Matcher:
    """The native handle of a matcher written in Python; `factory` makes another at its start, for replays. Raises
    `GuideError` for an object that is none.
    """
    try:
        return python_matcher(matcher, factory)
    except TypeError as error:
        raise GuideError(f"{type(matcher).__name__} can't be a matcher: {error}") from error
    except Exception as error:  # of the matcher itself, asked whether it has ended
        raise GuideError(
            f"{type(matcher).__name__} can't say whether it has ended: {type(error).__name__}: {error}"
        ) from error
