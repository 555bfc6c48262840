"""A server's settings as a TOML file says them.

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
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from weft import registry
from weft.config import EngineConfig, Speculation
from weft.errors import InputError, WeftError
from weft.grammar.guide import Guide
from weft.server.models import ModelConfig
from weft.server.programs import ProgramLimits
from weft.server.settings import ServerConfig

T = TypeVar("T")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says: the server, its models, and programs that it brings along, by name."""

    server: ServerConfig
    models: list[ModelConfig]
    programs: dict[str, Path]


def read_config(path: Path) -> ConfigFile:
    """Read a file. Raises `InputError`, which names the file and the key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: is no TOML: {error}") from None
    try:
        _check(data, ("server", "models", "programs"), "")
        server = _server(_table(data.get("server", {}), "server"))
        entries = data.get("models", [])
        if not isinstance(entries, list):
            raise InputError("models is no list of tables; write [[models]] for each")
        models = [_model(entry, path.parent, f"models[{i}].") for i, entry in enumerate(entries)]
        programs = {
            name: path.parent / _text(file, f"programs.{name}")
            for name, file in data.get("programs", {}).items()
        }
    except WeftError as error:
        raise InputError(f"{path}: {error}") from None
    return ConfigFile(server, models, programs)


def _server(data: Mapping[str, Any]) -> ServerConfig:
    limits = _made(ProgramLimits, data.get("programs", {}), "server.programs.")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    return _made(ServerConfig, {**given, "programs": limits}, "server.")


def _model(data: Any, folder: Path, where: str) -> ModelConfig:
    if not isinstance(data, dict):
        raise InputError(f"{where[:-1]} is no table")
    given = dict(data)
    engine = {"untrusted_guides": True, **_table(given.pop("engine", {}), where + "engine")}
    speculation = _speculation(
        _table(given.pop("speculation", {}), where + "speculation"), where + "speculation."
    )
    guides = _table(given.pop("guides", {}), where + "guides")
    handles = {name: _guide(guide, folder, f"{where}guides.{name}") for name, guide in guides.items()}
    if isinstance(given.get("thinking"), list):
        given["thinking"] = tuple(given["thinking"])
    own = {
        "engine": _made(EngineConfig, engine, where + "engine."),
        "speculation": speculation,
        "handles": handles,
    }
    return _made(ModelConfig, {**given, **own}, where)


def _speculation(data: Mapping[str, Any], where: str) -> Speculation:
    _check(data, ("drafter", "path", "num_draft_tokens", "guide_drafts", "forced", "given"), where)
    name, known = data.get("drafter", "none"), ["none", *registry.names("drafters")]
    if name not in known:
        raise InputError(f"{where}drafter is {name!r}; it must be one of {', '.join(known)}")
    count = data.get("num_draft_tokens", 3)
    if isinstance(count, dict):
        count = {int(batch): number for batch, number in count.items()}
    chosen = Speculation.none()
    if name != "none":
        path = Path(data["path"]) if "path" in data else None
        chosen = Speculation.named(
            name, path, num_draft_tokens=count, guide_drafts=data.get("guide_drafts", "auto")
        )
    if data.get("forced"):
        chosen = Speculation.forced(chosen) if name != "none" else Speculation.forced(num_draft_tokens=count)
    return Speculation.given(chosen) if data.get("given") else chosen


def _guide(data: Any, folder: Path, where: str) -> Guide:
    """A guide of the server's own: one kind, as text, or the name of a file beside the configuration."""
    makers: dict[str, Callable[[Any], Guide]] = {
        "json_schema": Guide.json_schema,
        "regex": Guide.regex,
        "ebnf": Guide.ebnf,
        "lark": Guide.lark,
        "choice": Guide.choice,
        "structural_tag": Guide.structural_tag,
    }
    kinds = [kind for kind in makers if kind in _table(data, where)]
    if "wasm" in data:
        return Guide.wasm(folder / _text(data["wasm"], where), data.get("arg", ""), trusted=True)
    if len(kinds) != 1 or len(data) != 1:
        raise InputError(f"{where} must have one of {', '.join(makers)} or wasm")
    value = data[kinds[0]]
    if isinstance(value, str) and kinds[0] != "regex" and (folder / value).is_file():
        value = (folder / value).read_text(encoding="utf-8")
    if kinds[0] == "json_schema" and isinstance(value, dict):
        value = json.dumps(value)
    return makers[kinds[0]](value)


def _made(kind: type[T], data: Mapping[str, Any], where: str) -> T:
    settings = fields(cast("Any", kind))
    names = [field.name for field in settings]
    _check(data, names, where)
    required = [f.name for f in settings if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in data]
    if missing:
        raise InputError(f"{where}{missing[0]} is missing")
    try:
        return kind(**data)
    except TypeError as error:
        raise InputError(f"{where[:-1]}: {error}") from None


def _check(data: Mapping[str, Any], names: Any, where: str) -> None:
    if not isinstance(data, dict):
        raise InputError(f"{where[:-1]} is no table")
    unknown = [name for name in data if name not in names]
    if unknown:
        raise InputError(f"there is no setting {where}{unknown[0]}; there is {', '.join(names)}")


def _table(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{where} is no table")
    return data


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be a text")
    return value
