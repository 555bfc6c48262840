"""Reads a server's settings from a TOML file:

[server]
port = 8000
[server.api_keys]
ada = "a long secret"

[[models]]
path = "weft-tiny"
name = "tiny"
[models.speculation]
drafter = "eagle3"
num_draft_tokens = 3
forced = true
[models.engine]
max_batch = 32
[models.guides.person]
json_schema = "person.json"       # a file beside this one, or the schema itself
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from weft import registry
from weft.config import EngineConfig, Speculation
from weft.core.names import ENGINE_NAMES
from weft.core.pydantic_errors import first_fault
from weft.errors import GuideError, InputError
from weft.grammar.guide import Guide
from weft.server.errors import in_words
from weft.server.faults import FaultList, Faults
from weft.server.models import ServedModelConfig
from weft.server.settings import ProgramSettings, ServerConfig

T = TypeVar("T")
MODEL_SETTINGS = [field.name for field in fields(ServedModelConfig) if field.name not in ("handles", "place")]
MODEL_SETTINGS.append("guides")


@dataclass(frozen=True)
class ConfigFile:
    """The contents of a configuration file: the server's settings, the models, and the paths of shared programs.
    `programs` maps the programs' names to paths."""

    server: ServerConfig
    models: list[ServedModelConfig]
    programs: dict[str, Path]


def read_config(path: Path, faults: FaultList | None = None) -> ConfigFile:
    """Read a configuration file. Raises `InputError` for a file that can't be read, and `Faults` with every fault in
    it. Each names the file and the setting. Adds them to `faults` instead, if given; then the result has the valid
    settings, and defaults in place of others."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: is no TOML: {error}") from None
    several, faults, place = faults, faults or FaultList(), f"{path}: "
    server, models, programs = ServerConfig(), list[ServedModelConfig](), dict[str, Path]()
    with faults.noted(place):
        _check_names(data, ("server", "models", "programs"), "")
    with faults.noted(place):
        server = _server(_table(data.get("server", {}), "server"))
    with faults.noted(place):
        entries = data.get("models", [])
        if not isinstance(entries, list):
            raise InputError("models is no list of tables; write [[models]] for each")
        for i, entry in enumerate(entries):
            with faults.noted(place):
                model, of_model = _model(entry, path.parent, f"models[{i}].")
                models.append(replace(model, place=f"{path}: models[{i}]"))
                of_model.check()
    with faults.noted(place):
        for name, file in _table(data.get("programs", {}), "programs").items():
            with faults.noted(place):
                programs[name] = path.parent / _text(file, f"programs.{name}")
    if several is None:
        faults.check()
    return ConfigFile(server, models, programs)


def _server(data: Mapping[str, Any]) -> ServerConfig:
    faults, values = FaultList(), dict(data)
    programs = ProgramSettings()
    with faults.noted():
        programs = _settings(ProgramSettings, values.pop("programs", {}), "server.programs.")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    server = ServerConfig()
    with faults.noted():
        server = _settings(ServerConfig, values, "server.", programs=programs)
    faults.check()
    return server


def _model(data: Any, folder: Path, where: str) -> tuple[ServedModelConfig, FaultList]:
    """Read a model's table. The result has defaults in place of wrong settings."""
    if not isinstance(data, dict):
        raise InputError(f"{where[:-1]} is no table")
    faults, values = FaultList(), {name: value for name, value in data.items() if name in MODEL_SETTINGS}
    with faults.noted():
        _check_names(data, MODEL_SETTINGS, where)
    parts: dict[str, Any] = {}
    with faults.noted():
        engine = _table(values.pop("engine", {}), where + "engine")
        engine = {"untrusted_guides": True, "shares_slots": True, **engine}
        parts["engine"] = _settings(EngineConfig, engine, where + "engine.")
    with faults.noted():
        speculation = _table(values.pop("speculation", {}), where + "speculation")
        parts["speculation"] = _speculation(speculation, where + "speculation.")
    with faults.noted():
        parts["handles"] = {}
        for name, guide in _table(values.pop("guides", {}), where + "guides").items():
            with faults.noted():
                parts["handles"][name] = _guide(guide, folder, f"{where}guides.{name}")
    if isinstance(values.get("thinking"), list):
        values["thinking"] = tuple(values["thinking"])
    texts = {name: values[name] for name in ("path", "name") if isinstance(values.get(name), str)}
    model = ServedModelConfig(**texts, **parts)
    with faults.noted():
        model = _settings(ServedModelConfig, values, where, **parts)
    return model, faults


def _speculation(data: Mapping[str, Any], where: str) -> Speculation:
    faults = FaultList()
    with faults.noted():
        keys = "drafter", "path", "num_draft_tokens", "guide_drafts", "adaptive", "forced", "given"
        _check_names(data, keys, where)
    name, known = data.get("drafter", "none"), ["none", *registry.names("drafters")]
    with faults.noted():
        if name not in known:
            close = get_close_matches(str(name), known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"it must be one of {', '.join(known)}"
            raise InputError(f"{where}drafter is {name!r}; {hint}")
    faults.check()
    count = data.get("num_draft_tokens", 3)
    if isinstance(count, dict):
        wrong = next((batch for batch in count if not batch.isdecimal()), None)
        if wrong is not None:
            raise InputError(f"{where}num_draft_tokens has {wrong!r}, which is no batch size")
        count = {int(batch): number for batch, number in count.items()}
    chosen = Speculation.none()
    if name != "none":
        path = Path(_text(data["path"], where + "path")) if "path" in data else None
        chosen = Speculation.named(
            name,
            path,
            num_draft_tokens=count,
            guide_drafts=data.get("guide_drafts", "auto"),
            adaptive=_switch(data, "adaptive", where),
        )
    if _switch(data, "forced", where):
        chosen = Speculation.forced(chosen) if name != "none" else Speculation.forced(num_draft_tokens=count)
    return Speculation.given(chosen) if _switch(data, "given", where) else chosen


def _guide(data: Any, folder: Path, where: str) -> Guide:
    """Build a configured guide. `data` maps one kind of guide to its source, or to the name of a file in `folder`. For
    `wasm` it has the file's name, and may have `arg`."""
    makers: dict[str, Callable[[Any], Guide]] = {
        "json_schema": Guide.json_schema,
        "regex": Guide.regex,
        "ebnf": Guide.ebnf,
        "lark": Guide.lark,
        "choice": Guide.choice,
        "structural_tag": Guide.structural_tag,
    }
    kinds = [kind for kind in makers if kind in _table(data, where)]
    if "wasm" in data and data.keys() <= {"wasm", "arg"}:
        return Guide.wasm(folder / _text(data["wasm"], where), data.get("arg", ""), trusted=True)
    if len(kinds) != 1 or len(data) != 1:
        raise InputError(f"{where} must have one of {', '.join(makers)} or wasm")
    kind, value = kinds[0], data[kinds[0]]
    if kind == "json_schema":
        value = _schema(value, folder, f"{where}.{kind}")
    elif isinstance(value, str) and kind != "regex":
        value = _content(folder / value) or value
    try:
        return makers[kind](value)
    except GuideError as error:
        raise InputError(f"{where}.{kind}: {error}") from None


def _schema(value: Any, folder: Path, where: str) -> str:
    """Return a JSON schema as JSON text. `value` is a table, JSON text, or the name of a file in `folder`."""
    content = _content(folder / value) if isinstance(value, str) else None
    try:
        text = json.dumps(value) if not isinstance(value, str) else value if content is None else content
        json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        # A schema is an object or a boolean; other text is the name of a file.
        if isinstance(value, str) and content is None and not value.lstrip().startswith("{"):
            raise InputError(
                f"{where} is not valid JSON, and there is no file {value[:200]!r} beside the configuration file"
            ) from None
        raise InputError(f"{where} is not valid JSON: {error}") from None
    return text


def _settings(kind: type[T], data: Mapping[str, Any], where: str, **built: Any) -> T:
    """Build a settings object of class `kind`, all of whose fields have defaults, from the values in `data`. Fields in
    `built` are not read from it. Raises `Faults`."""
    faults, names = FaultList(), [field.name for field in fields(cast("Any", kind))]
    _table(data, where[:-1])
    with faults.noted():
        _check_names(data, names, where)
    hints = get_type_hints(kind)
    values = {name: value for name, value in data.items() if name in names and name not in built}
    for name, value in values.items():
        with faults.noted():
            _check_type(value, hints[name], where + name)
            _made(kind, where, {name: value})  # alone, so that each wrong value is found
    faults.check()
    return _made(kind, where, {**values, **built})


def _made(kind: type[T], where: str, values: Mapping[str, Any]) -> T:
    """Make a settings object. The message of an `InputError` gets the place of the setting in the file."""
    try:
        return kind(**values)
    except InputError as error:
        message = str(error)
        is_named = message.partition(" ")[0] in values
        place = (
            where if is_named else f"{where}{next(iter(values))}: " if len(values) == 1 else f"{where[:-1]}: "
        )
        raise InputError(place + message) from None


def _check_type(value: Any, hint: Any, where: str) -> None:
    """Raise `InputError` for a value of the wrong type. The check is strict, because a lenient one would read "false"
    as true."""
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        fault = first_fault(error, value)
        raise InputError(f"{'.'.join([where, *fault.place])} {in_words(fault.error, fault.others)}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where} is {value}; it must be finite")


def _check_names(data: Mapping[str, Any], names: Any, where: str) -> None:
    if not isinstance(data, dict):
        raise InputError(f"{where[:-1]} is no table")
    unknown = [name for name in data if name not in names]
    if unknown:
        raise Faults(f"there is no setting {where}{name}; {_hint(name, names)}" for name in unknown)


def _hint(name: str, names: Any) -> str:
    """The setting that the author of an unknown `name` probably means, or all settings."""
    meant = ENGINE_NAMES.get(name)
    if meant in names:
        return f"it is called {meant}"
    close = get_close_matches(name, names, 1)
    return f"did you mean {close[0]}?" if close else f"there is {', '.join(names)}"


def _switch(data: Mapping[str, Any], name: str, where: str) -> bool:
    value = data.get(name, False)
    if not isinstance(value, bool):
        raise InputError(f"{where}{name} is {value!r}; it must be true or false")
    return value


def _content(path: Path) -> str | None:
    """Return the content of a file; None if it does not exist or can't be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, ValueError):  # a schema given in place is no valid path, and may be too long for one
        return None


def _table(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{where} is no table")
    return data


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be a text")
    return value
