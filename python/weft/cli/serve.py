"""`weft serve`: serves models over HTTP."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli import options as o
from weft.cli.inputs import choose_speculation
from weft.cli.options import DEFAULT, DRAFTS, MODEL, Device, Guided
from weft.core.extras import install_hint
from weft.errors import InputError, InterfaceError, escaped

if TYPE_CHECKING:
    from weft.server.check import CheckedModel
    from weft.server.config_file import ConfigFile
    from weft.server.faults import FaultList
    from weft.server.models import ServedModelConfig
    from weft.server.settings import ServerConfig

SERVER = "Server"
NAMED_KEY = re.compile(r"(?P<name>[A-Za-z0-9_-]{1,64})=(?P<key>.*[^=].*)")
"""A key with a name. A = at the end of a key is base64 padding and does not separate a name."""


class LogFormat(StrEnum):
    text = "text"
    json = "json"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def _server(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=SERVER, **more)


Keys = Annotated[
    list[str] | None,
    _server("--api-key", metavar="NAME=KEY", help="A client's key. Repeatable. WEFT_API_KEY is another."),
]
Origins = Annotated[
    list[str] | None,
    _server(
        "--allow-origin", metavar="URL", help="An origin whose pages may send requests; * is all. Repeatable."
    ),
]


Hosts = Annotated[
    list[str] | None,
    _server(
        "--allow-host",
        metavar="NAME",
        help="Without keys: a further host name of this server. Repeatable.",
    ),
]


def serve(
    context: typer.Context,
    model: o.NamedModel = None,
    same_model: o.Model = None,
    config: Annotated[
        Path | None, _server("--config", "-c", metavar="FILE", help="Settings in TOML, see docs/server.md.")
    ] = None,
    host: Annotated[str | None, _server("--host", help="The address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, _server("--port", "-p", help="The port (8000).")] = None,
    api_key: Keys = None,
    max_requests: Annotated[
        int | None, _server("--max-requests", help="Maximum number of open requests (512).")
    ] = None,
    max_requests_per_key: Annotated[
        int | None, _server("--max-requests-per-key", help="The same for each key (a share).")
    ] = None,
    max_body_bytes: Annotated[
        int | None, _server("--max-body-bytes", help="Maximum size of a request's body (4 MiB).")
    ] = None,
    stream_interval_ms: Annotated[
        float | None,
        _server("--stream-interval-ms", help="Minimum time between the events of a stream (20)."),
    ] = None,
    drain_s: Annotated[
        float | None, _server("--drain-s", help="Seconds for open requests to finish at shutdown (30).")
    ] = None,
    allow_origin: Origins = None,
    allow_host: Hosts = None,
    page: Annotated[bool | None, _server("--page/--no-page", help="The playground at /.")] = None,
    check: Annotated[
        bool, _server("--check", help="Only check the settings: report all faults, or a summary.")
    ] = False,
    log_format: Annotated[LogFormat, _server("--log-format", help="Text lines, or JSON.")] = LogFormat.text,
    log_level: Annotated[
        LogLevel, _server("--log-level", help="The lowest level that is logged.")
    ] = LogLevel.info,
    name: Annotated[
        str | None, typer.Option(help="The model's name for clients.", rich_help_panel=MODEL)
    ] = None,
    device: o.Where = Device.auto,
    dtype: o.Dtype = "auto",
    activations: o.Rounding = o.ROUNDING,
    kv_cache_dtype: o.CacheDtype = o.CACHE_DTYPE,
    max_batch: Annotated[
        int, typer.Option(help="Maximum number of sequences that decode together.", rich_help_panel=MODEL)
    ] = 32,
    max_seq_len: Annotated[
        int | None, typer.Option(help="Tokens of prompt and answer.", rich_help_panel=MODEL)
    ] = None,
    host_tasks: o.TaskKind = o.HOST_TASKS,
    trust_guides: Annotated[
        bool,
        typer.Option(
            "--trust-guides",
            help="All clients are trusted: compile guides without a trial.",
            rich_help_panel=MODEL,
        ),
    ] = False,
    tool_style: Annotated[
        str | None,
        typer.Option(help="The format of tool calls, if not the chat template's.", rich_help_panel=MODEL),
    ] = None,
    speculation: o.Speculate = DEFAULT,
    head: o.Head = None,
    forced: o.ForcedText = False,
    given: Annotated[
        bool,
        typer.Option(
            "--given",
            help="First draft the answer that a request expects (prediction).",
            rich_help_panel=DRAFTS,
        ),
    ] = False,
    num_draft_tokens: o.DraftCount = "3",
    adaptive: o.Adaptive = False,
) -> None:
    """Serve models through OpenAI's API and Anthropic's, with a playground at /."""
    try:
        from weft.server import check as checks
        from weft.server import config_file, faults, logs, models, run, settings
    except ImportError as error:
        raise InterfaceError(f"weft serve needs {error.name}: {install_hint('serve')}") from error
    from dataclasses import replace

    from weft.config import EngineConfig, Speculation
    from weft.registry import MODEL_FILES

    # Flush at exit, so that the reason for the exit is the last line.
    # A check prints its own words about each fault.
    level = LogLevel.error if check else log_level
    context.call_on_close(logs.set_up(log_format.value, level.value).flush)
    found = faults.FaultList()
    is_file = model is not None and Path(model).is_file() and Path(model).suffix not in MODEL_FILES
    if check and config is None and model is not None and is_file:
        config, model = Path(model), None
    read = config_file.read_config(config, found) if config is not None else None
    own: dict[str, Any] = {
        "host": host,
        "port": port,
        "max_requests": max_requests,
        "max_requests_per_key": max_requests_per_key,
        "max_body_bytes": max_body_bytes,
        "stream_interval_ms": stream_interval_ms,
        "drain_s": drain_s,
        "allowed_origins": tuple(allow_origin) if allow_origin else None,
        "allowed_hosts": tuple(allow_host) if allow_host else None,
        "has_page": page,
    }
    server = read.server if read is not None else settings.ServerConfig()
    own["api_keys"] = {**server.api_keys, **_keys(api_key)}
    with found.noted():
        server = replace(server, **{key: value for key, value in own.items() if value is not None})
    if model is not None and same_model is not None:
        raise InputError(
            f"two models: {model!r}, and {same_model!r} of --model; give one, and others in --config FILE"
        )
    model = model or same_model
    entries: list[ServedModelConfig] = read.models if read is not None else []
    if model is None and entries:
        _refuse_model_options(context)
    else:
        chosen = choose_speculation(speculation, head, num_draft_tokens, Guided.auto, forced, model, adaptive)
        engine = EngineConfig(
            max_batch=max_batch,
            max_seq_len=max_seq_len,
            activation_dtype=activations.value,
            host_tasks=host_tasks.value,
            untrusted_guides=not trust_guides,
            shares_slots=True,
            kv_cache_dtype=kv_cache_dtype.value,
        )
        drafts = Speculation.given(chosen) if given else chosen
        one = models.ServedModelConfig(
            model, name, device.value, dtype, drafts, engine, tool_style=tool_style
        )
        entries = [one, *entries]
    programs = _programs(read, config, found)
    checked = checks.check_models(entries, found)
    if check:
        checked = checks.check_contents(checked, found)
    try:
        found.check()
        if check:
            _sum_up(server, checked, programs)
            return
        run.check_address(server)
        served = {models.name_of(entry): models.build(entry) for entry in entries}
        models.warm_up(served.values())
    except faults.Faults as several:
        if len(several.faults) == 1:
            raise InputError(str(several)) from None
        typer.echo(f"weft: there are {len(several.faults)} faults:", err=True)
        for fault in several.faults:
            typer.echo(f"  {escaped(fault)}", err=True)
        raise typer.Exit(2) from None
    if not run.serve(server, served, programs):
        raise typer.Exit(1)


def _sum_up(server: ServerConfig, checked: list[CheckedModel], programs: Mapping[str, bytes]) -> None:
    """Print a summary of settings without faults."""
    from weft.server.models import in_bytes
    from weft.server.run import base_url, check_address

    base = base_url(server.host, server.port)
    page = f", page at {base}" if server.has_page else ""
    keys = f"keys: {', '.join(server.api_keys)}" if server.api_keys else "no key"
    typer.echo(f"no faults; listens at {server.host}, port {server.port}: API at {base}/v1{page}; {keys}")
    for model in checked:
        typer.echo(str(model))
    if programs:
        typer.echo(f"programs: {', '.join(programs)}")
    num_bytes = sum(model.num_bytes for model in checked)
    typer.echo(
        f"memory: up to {in_bytes(num_bytes)} of weights, pages and states, without the processes' own"
    )
    try:
        check_address(server)
    except InputError as error:
        typer.echo(f"note: {error}")


def _refuse_model_options(context: typer.Context) -> None:
    """Raise `InputError` if the command line has an option of a model. All models are in the configuration file."""
    for parameter in context.command.params:
        is_of_model = getattr(parameter, "rich_help_panel", None) in (MODEL, DRAFTS)
        source = context.get_parameter_source(parameter.name or "")
        if is_of_model and source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"{parameter.opts[0]} is for a model of the command line; the configuration's have theirs in [[models]]"
            )


def _keys(given: list[str] | None) -> dict[str, str]:
    """Return keys by name. A key without a name gets a number. The key in WEFT_API_KEY is named "environment"."""
    found: dict[str, str] = {}
    for number, entry in enumerate(given or [], 1):
        named = NAMED_KEY.fullmatch(entry)
        name, key = (named["name"], named["key"]) if named is not None else (f"key-{number}", entry)
        if name in found:
            raise InputError(f"--api-key: there are two keys of the name {name!r}")
        found[name] = key
    if os.environ.get("WEFT_API_KEY"):
        found["environment"] = os.environ["WEFT_API_KEY"]
    return found


def _programs(read: ConfigFile | None, config: Path | None, faults: FaultList) -> dict[str, bytes]:
    """Read and check the WebAssembly programs that the configuration file names."""
    from weft.grammar.guide import Guide

    programs = {}
    for name, path in (read.programs if read is not None else {}).items():
        with faults.noted(f"{config}: programs.{name}: {path}: "):
            try:
                programs[name] = path.read_bytes()
            except OSError as error:
                raise InputError(f"can't be read: {error.strerror}") from None
            Guide.wasm(programs[name])  # checks the file's form only
    return programs
