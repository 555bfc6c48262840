"""Loads the tokenizer of a Hugging Face directory as data: without code from the directory, and without network.

The tokenizer.json is used as it is. Other files add names of special tokens, missing tokens and chat templates. For a
directory without a tokenizer.json, transformers converts the tokenizer files that are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from weft.core.files import read_json
from weft.errors import TokenizerError
from weft.tokenizer.tokenizer import ChatTemplate, Tokenizer

FILES = ("tokenizer.json", "tokenizer.model", "tekken.json")
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = ("extra_special_tokens", "additional_special_tokens")


def has_tokenizer(path: Path) -> bool:
    """Whether a directory contains a tokenizer."""
    return any((path / name).is_file() for name in FILES)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the fast tokenizer of a Hugging Face directory. Raises `TokenizerError`.

    Code in the directory (`auto_map`) is never run, and no prompt asks for permission to run it.
    """
    path = Path(path)
    if not has_tokenizer(path):
        raise TokenizerError(
            f"{path}: no tokenizer.json (nor tokenizer.model, tekken.json); copy the tokenizer there"
        )
    if not (path / "tokenizer.json").is_file():
        from weft.tokenizer.converted import convert

        return convert(path)
    backend, filler = _backend(path / "tokenizer.json")
    settings = {**filler, **_settings(path)}
    named = {
        name: _text(token) for name, token in settings.items() if name.endswith("_token") and _text(token)
    }
    listed = next((settings[name] for name in EXTRA if settings.get(name)), ())
    if isinstance(listed, dict):
        named |= {name: _text(token) for name, token in listed.items()}
        listed = ()
    extra = [_text(token) for token in listed]
    ordered = {name: named[name] for name in (*NAMED, *named) if name in named}
    backend.add_tokens(list(_lacking(backend, settings, [*ordered.values(), *extra])))
    return Tokenizer(backend, ordered, extra, _templates(path, settings))


def _backend(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a tokenizer.json, without truncation and padding, and the padding token that it names (as a
    setting, or {})."""
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more specific
        raise TokenizerError(f"{path}: can't be read as a tokenizer: {error}") from error
    filler = {"pad_token": backend.padding["pad_token"]} if backend.padding else {}
    backend.no_truncation()
    backend.no_padding()
    return backend, filler


def _settings(path: Path) -> dict[str, Any]:
    """The contents of tokenizer_config.json, merged with special_tokens_map.json, which older directories have."""
    settings = _object(path / "tokenizer_config.json")
    older = {} if "added_tokens_decoder" in settings else _object(path / "special_tokens_map.json")
    return {**settings, **older}


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except ValueError as error:
        raise TokenizerError(str(error)) from error


def _lacking(
    backend: tokenizers.Tokenizer, settings: dict[str, Any], special: list[str]
) -> Iterator[AddedToken]:
    """Tokens to add to the tokenizer of a tokenizer.json.

    First come the tokens of `added_tokens_decoder` that the tokenizer lacks or describes differently, in the order of
    their ids. Then come special tokens that neither file has."""
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    names = {token.content for token in backend.get_added_tokens_decoder().values()}
    numbered = settings.get("added_tokens_decoder") or {}
    for _, given in sorted(numbered.items(), key=lambda item: int(item[0])):
        token = AddedToken(**given)
        if repr(token) not in known:
            token.special = token.special or token.content in special
            names.add(token.content)
            yield token
    for name in dict.fromkeys(special):
        if name not in names:
            yield AddedToken(name, special=True)


def _text(token: Any) -> str:
    """The text of a token. Files write a token as a string, or as an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _templates(path: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    """The chat templates. Template files take precedence over tokenizer_config.json."""
    found = {
        file.stem: file.read_text(encoding="utf-8") for file in path.glob("additional_chat_templates/*.jinja")
    }
    if (path / "chat_template.jinja").is_file():
        found = {"default": (path / "chat_template.jinja").read_text(encoding="utf-8"), **found}
    if found:
        return found["default"] if list(found) == ["default"] else found
    given = settings.get("chat_template")
    if isinstance(given, list):
        return {entry["name"]: entry["template"] for entry in given}
    return given if isinstance(given, str | dict) else None
