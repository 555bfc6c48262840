"""Reads JSON schemas with instances in MaskBench's layout, and tokenizes the instances.

The source may be a folder of `*.json` files, each `{"schema": …, "tests": [{"valid": bool, "data": …}]}`. They are
in subfolders, or named `SPLIT---NAME.json`. It may also be a `*.jsonl` file with such an object per line, plus
`name` and `split`, or a folder of such files.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.grammar import Vocabulary

STYLES: dict[str, dict[str, Any]] = {
    "spaced": {"separators": (", ", ": ")},
    "compact": {"separators": (",", ":")},
}


@dataclass(frozen=True)
class SchemaFile:
    """A schema and its instances. If the file can't be used, `problem` is the reason."""

    name: str
    split: str
    schema: Any = None
    tests: tuple[tuple[bool, Any], ...] = ()
    problem: str = ""


def read(source: Path) -> list[SchemaFile]:
    """Read every schema of a folder or a `.jsonl` file, sorted by file name. Raises `InputError` if there is none."""
    if source.is_dir():
        found = [_of_file(path, source) for path in sorted(source.rglob("*.json"))]
        found += [file for path in sorted(source.rglob("*.jsonl")) for file in _of_lines(path)]
    elif source.is_file():
        found = list(_of_lines(source))
    else:
        raise InputError(f"{source}: neither a folder of *.json or *.jsonl files nor a *.jsonl file")
    if not found:
        raise InputError(f"{source}: no schemas in it; they are *.json files, or the lines of a *.jsonl file")
    return found


def some(files: list[SchemaFile], limit: int | None, seed: int) -> list[SchemaFile]:
    """Return `limit` random files, in their original order."""
    if limit is None or limit >= len(files):
        return files
    return [files[i] for i in sorted(random.Random(seed).sample(range(len(files)), limit))]


def _of_file(path: Path, folder: Path) -> SchemaFile:
    split, _, _ = path.stem.rpartition("---")
    if not split:
        split = path.parent.name if path.parent != folder else ""
    try:
        return _checked(path.stem, split, json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        return SchemaFile(path.stem, split, problem=f"{type(error).__name__}: {error}")


def _of_lines(path: Path) -> Iterator[SchemaFile]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            name = f"line {number}"
            try:
                data = json.loads(line)
                yield _checked(str(data.get("name", name)), str(data.get("split", "")), data)
            except (ValueError, AttributeError, RecursionError) as error:
                yield SchemaFile(name, "", problem=f"{type(error).__name__}: {error}")


def _checked(name: str, split: str, data: Any) -> SchemaFile:
    if not isinstance(data, dict) or "schema" not in data:
        return SchemaFile(name, split, problem="not an object with a schema")
    tests = data.get("tests", [])
    if not isinstance(tests, list) or not all(isinstance(t, dict) and "data" in t for t in tests):
        return SchemaFile(name, split, problem="tests is not a list of objects with data")
    return SchemaFile(
        name, split, data["schema"], tuple((bool(test.get("valid", True)), test["data"]) for test in tests)
    )


def text_of(data: Any, style: str) -> str:
    """Write an instance as JSON text in one of `STYLES`. If it contains a lone surrogate, which UTF-8 can't encode,
    the text is escaped."""
    text = json.dumps(data, ensure_ascii=False, **STYLES[style])
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(data, **STYLES[style])
    return text


class TextTokens:
    """Tokenizes texts for a vocabulary. If its tokenizer is given and preserves every byte, that is used. Otherwise
    the longest token that fits is chosen greedily. Raises `InputError` if the vocabulary lacks a byte of the text."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: Any = None) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._ids: dict[bytes, int] = {}
        for token, text in enumerate(vocabulary.tokens):
            if text:
                self._ids.setdefault(text, token)
        self._longest = min(max(map(len, self._ids), default=0), 64)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without end token."""
        wanted = text.encode()
        if self._tokenizer is not None:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            if self._vocabulary.decode(ids) == wanted:
                return ids
        return self._greedy(wanted)

    def _greedy(self, text: bytes) -> list[int]:
        tokens, position = [], 0
        while position < len(text):
            for length in range(min(self._longest, len(text) - position), 0, -1):
                token = self._ids.get(text[position : position + length])
                if token is not None:
                    break
            else:
                raise InputError(f"the vocabulary has no token for byte {text[position]:#04x}")
            tokens.append(token)
            position += length
        return tokens
