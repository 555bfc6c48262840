"""Parses request bodies: `read_json` turns bytes into data, and `Body` validates the data.

Both reject bad input early and cheaply. Python's JSON parser holds the GIL on any thread, so `read_json` counts entries
before it builds any object. pydantic would build an error object for each invalid entry, so list validation stops at
the first one.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from inspect import isclass
from threading import Lock
from types import NoneType
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from weft.core.pydantic_errors import first_fault
from weft.errors import brief
from weft.server.errors import ApiError, in_words, kind_of, quoted
from weft.server.settings import ServerConfig

# -- JSON

MAX_TEXT_ENTRIES = ServerConfig.max_body_entries
"""The entry limit for JSON inside a string of the body, such as a schema given as a string."""
LARGE_SHARE, LARGE = 4, "lists, objects, names and texts"
"""At most 1 / `LARGE_SHARE` of the entries may be of the kinds `LARGE`. They cost more memory and time than numbers."""
SURROGATE, BOM = b"\\ud", "\ufeff"
MAX_LOOP_PARSE_BYTES = 64 << 10
"""Bodies up to this many bytes are parsed on the event loop."""
_parsing = Lock()
"""Held while a thread parses a large body. Several such threads would only compete for the GIL, and the event loop
would wait for each of them in turn."""


def read_json(raw: bytes, max_entries: int) -> Any:
    """Parse a body's bytes as JSON. Raises `ApiError`."""
    if not raw:
        raise ApiError("the body is empty; send a JSON object")
    with _parsing if len(raw) > MAX_LOOP_PARSE_BYTES else nullcontext():
        return _parsed(raw, max_entries)


def _parsed(raw: bytes, max_entries: int) -> Any:
    check_entries(raw, max_entries)
    try:
        # json.loads on bytes would accept lone surrogates, and would detect UTF-16.
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ApiError(f"the body is no UTF-8: byte {error.start} can't be read") from None
    if text.startswith(BOM):
        raise ApiError("the body begins with a byte order mark; send UTF-8 without one")
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
        if SURROGATE in raw.lower():
            # A lone surrogate would otherwise fail only later, when an answer that repeats it is encoded.
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except RecursionError:
        raise ApiError("the body is not JSON that can be read: its brackets nest too deep") from None
    except UnicodeEncodeError:
        raise ApiError("the body has half a character (a surrogate), which UTF-8 can't hold") from None
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from None


def checked_text(text: str) -> str:
    """Return a JSON string unchanged, after checking that it has no more entries than a body may have. Raises
    `ApiError`."""
    check_entries(text.encode(), MAX_TEXT_ENTRIES, "a text of JSON")
    return text


def check_entries(raw: bytes, max_entries: int, name: str = "the body") -> None:
    """Raise `ApiError` for JSON with more than `max_entries` entries, or too many large ones. This counts bytes and
    parses nothing."""
    max_large, quotes = max_entries // LARGE_SHARE, raw.count(b'"')
    # A lower bound for the number of strings. It refuses most oversized bodies without the copies below.
    if (quotes - raw.count(b'\\"')) // 2 > max_large:
        raise _too_many(name, max_large, LARGE)
    entries, brackets = raw.count(b","), raw.count(b"[") + raw.count(b"{")
    if entries > max_entries or brackets + quotes // 2 > max_large:
        # The quick count includes commas and brackets inside strings. Count again without strings: remove escapes,
        # then keep every second part between quotes.
        parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[::2])
        entries, brackets = outside.count(b","), outside.count(b"[") + outside.count(b"{")
        if brackets + len(parts) // 2 > max_large:
            raise _too_many(name, max_large, LARGE)
    if entries > max_entries:
        raise _too_many(name, max_entries, "entries")


def _too_many(name: str, limit: int, entries: str) -> ApiError:
    return ApiError(
        f"{name} has more than the {limit} {entries} that are read (max_body_entries)",
        code="too_many_entries",
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object. Raises `ApiError` for a repeated name, because a proxy that checked the body might have read
    the other value."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = Counter(name for name, _ in pairs)
        repeated = quoted(names.most_common(1)[0][0])
        raise ApiError(
            f"the body has an object with {repeated} more than once; give it once", code="duplicate_name"
        )
    return members


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


# -- fields

REFUSAL, UNKNOWN = "unsupported_parameter", "unknown_parameter"
"""Codes of `ApiError`. `Body` also uses them as pydantic error types."""
MAX_NAME = 100
"""The maximum length of a field name in an error message."""
MAX_ENTRIES = 10_000
MAX_COUNT = 2**31 - 1
"""The limit for token and whitespace counts. The engine and the grammar libraries use 32-bit integers."""
EXACT_FLOATS = 2**53
"""Below this value, every integer has an exact float."""
T = TypeVar("T")


def _bounded(value: Any) -> Any:
    """Reject a list or an object with too many entries before any entry is validated."""
    if isinstance(value, list | dict) and len(value) > MAX_ENTRIES:
        raise ValueError(f"has {len(value)} entries; at most {MAX_ENTRIES} are read")
    return value


class _FirstOnly(FailFast):
    """pydantic's `FailFast`, made hashable so that it can be used in a union."""

    __hash__ = object.__hash__


Few = Annotated[list[T], _FirstOnly(), BeforeValidator(_bounded)]
"""A list of bounded length. Validation stops at the first invalid entry, because a body may hold very many."""
Object = Annotated[dict[str, Any], BeforeValidator(_bounded)]
Refused = Mapping[str, tuple[str, tuple[Any, ...]]]
"""Refused fields by name. Each has the reason, and the values that are accepted because they have no effect."""
NoEffect = Mapping[str, tuple[Any, ...]]
"""Fields without effect by name. Each has the values that ask for the server's usual behaviour."""


class Body(BaseModel):
    """Base class for a request body, or for an object inside one.

    `REFUSED` lists fields that other servers accept but weft does not support. `NO_EFFECT` lists declared fields that
    change nothing here; `ignored` reports them. `OTHER_NAMES` maps other libraries' names for a field to weft's, for
    hints in errors. A null field counts as absent, unless its type includes null.

    Types are strict: "5" is not accepted as a number, nor 1 as true. But 5.0 is accepted as 5.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    REFUSED: ClassVar[Refused] = {}
    NO_EFFECT: ClassVar[NoEffect] = {}
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {}
    _null_is_absent: ClassVar[frozenset[str]] = frozenset()
    """Fields whose type excludes null, so that null means the default."""
    _known: ClassVar[frozenset[str]] = frozenset()
    """All accepted names, including those of refused fields."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        cls._null_is_absent = frozenset(
            field.alias or name
            for name, field in cls.model_fields.items()
            if not field.is_required() and field.annotation is not Any and not _takes_null(field.annotation)
        )
        cls._known = (
            frozenset(field.alias or name for name, field in cls.model_fields.items()) | cls.REFUSED.keys()
        )

    @property
    def ignored(self) -> list[str]:
        """The fields that are set and have no effect, such as "store" or "text.verbosity"."""
        names = []
        for name in self.model_fields_set:
            value = getattr(self, name)
            if isinstance(value, Body):
                names += [f"{name}.{inner}" for inner in value.ignored]
            elif name in self.NO_EFFECT and not _is_inert(value, self.NO_EFFECT[name]):
                names.append(name)
        return sorted(names)

    @classmethod
    def read(cls, data: Any) -> Self:
        """Validate parsed JSON. Raises `ApiError`, which names the field."""
        if not isinstance(data, dict):
            raise ApiError(f"the body is {kind_of(data)}; it must be an object")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise cls._api_error(error, data) from None

    @classmethod
    def _api_error(cls, error: ValidationError, data: Any) -> ApiError:
        """Convert pydantic's error to an `ApiError` with one line about the first fault."""
        fault = first_fault(error, data)
        kind, place = fault.error["type"], fault.place
        if kind in (REFUSAL, UNKNOWN):
            place = [*place, fault.error["ctx"]["name"]]
        path = brief(".".join(place), MAX_NAME)
        if kind == REFUSAL:
            return ApiError(fault.error["msg"], param=path, code=REFUSAL)
        if kind == UNKNOWN:
            return ApiError(
                f"unknown field {quoted('.'.join(place))}{cls._hint(place)}", param=path, code=UNKNOWN
            )
        message = in_words(fault.error, fault.others)
        return ApiError(f"{path}: {message}" if path else message, param=path or None)

    @classmethod
    def _hint(cls, place: Sequence[str]) -> str:
        """Return a "did you mean" hint for an unknown field; empty if no known field is similar."""
        *parents, name = place
        owner: type[Body] | None = cls
        for part in parents:
            owner = owner.within(part) if owner is not None else None
        meant = owner.meant_by(name[:MAX_NAME]) if owner is not None else None
        if meant is None:
            return ""
        if parents or "." not in meant:
            return f"; did you mean '{'.'.join([*parents, meant])}'?"
        outer, inner = meant.split(".")
        return f'; did you mean "{outer}": {{"{inner}": ...}}?'

    @classmethod
    def within(cls, name: str) -> type[Body] | None:
        """Return the `Body` class of a field, if the field is an object with known members."""
        annotation = next(
            (
                field.annotation
                for field_name, field in cls.model_fields.items()
                if (field.alias or field_name) == name
            ),
            None,
        )
        kinds = (annotation, *get_args(annotation))
        return next((kind for kind in kinds if isclass(kind) and issubclass(kind, Body)), None)

    @classmethod
    def meant_by(cls, name: str) -> str | None:
        """Return the field that an unknown name probably means."""
        if name in cls.OTHER_NAMES:
            return cls.OTHER_NAMES[name]
        known = [*(field.alias or key for key, field in cls.model_fields.items()), *cls.REFUSED]
        return next(iter(difflib.get_close_matches(name, known, 1)), None)

    @model_validator(mode="before")
    @classmethod
    def _prepared(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, (reason, inert) in cls.REFUSED.items():
            if name in data and not _is_inert(data[name], inert):
                raise PydanticCustomError(
                    REFUSAL, "{name} is not supported: {reason}", {"name": name, "reason": reason}
                )
        # pydantic does not check this: it would build an error for each unknown name, and would report a missing
        # field before the misspelt one.
        unknown = next((name for name in data if name not in cls._known), None)
        if unknown is not None:
            raise PydanticCustomError(UNKNOWN, "unknown field", {"name": unknown})
        absent = {name for name in cls._null_is_absent if name in data and data[name] is None}
        absent |= cls.REFUSED.keys() & data.keys()
        return {name: _number(value) for name, value in data.items() if name not in absent}


def _takes_null(annotation: Any) -> bool:
    return NoneType in get_args(annotation)


def _number(value: Any) -> Any:
    """Convert a whole float to int. JSON has only one number type, and some clients write 5 as 5.0."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < EXACT_FLOATS
    return int(value) if is_whole else value


def _is_inert(value: Any, inert: tuple[Any, ...]) -> bool:
    """Return whether a value changes nothing: null, or one of `inert`. Types must match, so True is not 1."""
    return value is None or any(value == other and type(value) is type(other) for other in inert)
