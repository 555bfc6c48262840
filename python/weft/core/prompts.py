"""Arguments of `LLM.generate` for one prompt or for a list of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeGuard, TypeVar, cast

from weft.errors import InputError

Prompt = str | Sequence[int]


class TextTokens(list[int]):
    """The token ids of a text, with the text."""

    def __init__(self, token_ids: Iterable[int], text: str) -> None:
        super().__init__(token_ids)
        self.text = text


T = TypeVar("T")


def is_prompt(prompts: object) -> TypeGuard[Prompt]:
    """Whether this is one prompt (text or token ids). False for a sequence of prompts. Raises `InputError`
    otherwise."""
    if isinstance(prompts, str):
        return True
    first = prompts[0] if isinstance(prompts, list) and prompts else prompts
    if isinstance(first, Mapping):
        raise InputError(
            "a prompt is a text or a list of token ids, not a dict; give the dict's 'prompt' or 'prompt_token_ids', "
            "or messages to chat"
        )
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise InputError(f"a prompt is a text or a list of token ids, not a {type(prompts).__name__}")
    return len(prompts) > 0 and not isinstance(prompts[0], str | Sequence)


def single(value: T | Sequence[T], name: str) -> T:
    """The value for a single prompt. Raises `InputError` for a list."""
    if isinstance(value, list | tuple):
        has_texts = name == "guide" and all(isinstance(item, str) for item in value)
        cure = "Guide.choice([...]) for one of these texts" if has_texts else f"one {name}"
        raise InputError(f"{name} is a list, but there is one prompt; give {cure}, or a list of prompts")
    return cast("T", value)


def spread(value: T | Sequence[T], count: int, name: str) -> list[T]:
    """One value for each of `count` prompts, from a single value or a list. Raises `InputError` for a list of another
    length."""
    if isinstance(value, list | tuple):
        if len(value) != count:
            raise InputError(
                f"{name} has {len(value)} entries for {count} prompts; give one each, or one for all"
            )
        return list(value)
    return [cast("T", value)] * count


@contextmanager
def progress(total: int, enabled: bool) -> Iterator[Callable[[int], object]]:
    """Show a progress bar over `total` requests on stderr, if `enabled`. Yields a function that advances it by a
    number of requests."""
    if not enabled:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("generating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("generating", total=total)
        yield lambda count: bar.advance(task, count)
