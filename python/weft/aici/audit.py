"""Checks a WASM module before it is compiled.

A module may import only AICI's functions and stubs of WASI. To roll tokens back, weft saves and restores the memory and
the globals. So a module must keep all of its state there: passive segments, and instructions that change a table, are
refused. The audit also exports mutable globals under reserved names, so that the host can save them.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft import _core
from weft.aici import sections as wasm_sections
from weft.aici.limits import WasmLimits
from weft.aici.sections import Reader, Section, encoded
from weft.errors import GuideError

GLOBAL_PREFIX = "weft_global_"
PAGE = 65536

FUNCTION_KIND, MEMORY_KIND, GLOBAL_KIND = 0, 2, 3
KINDS = ("function", "table", "memory", "global", "tag")
LETTERS = {0x7F: "i", 0x7E: "I", 0x7D: "f", 0x7C: "F", 0x7B: "v"}


# A signature is written as its parameters, a colon, and its results. "i" is i32 and "I" is i64, so "ii:i" takes two i32
# and returns one. HOST and WASI list the functions that programs may import; EXPORTS lists those that they must export.
HOST = {
    "aici_host_read_blob": "iii:i",
    "aici_host_token_trie": ":i",
    "aici_host_module_arg": ":i",
    "aici_host_process_arg": ":i",
    "aici_host_tokens": ":i",
    "aici_host_tokenize": "ii:i",
    "aici_host_return_logit_bias": "i:i",
    "aici_host_return_process_result": "ii:",
    "aici_host_self_seq_id": ":i",
    "aici_host_eos_token": ":i",
    "aici_host_get_config": "ii:i",
    "aici_host_storage_cmd": "ii:i",
    "aici_host_stop": ":",
}

# Standard libraries import these, even if they never call them. They are stubs: nearly all return "bad file
# descriptor".
WASI = {
    "args_get": "ii:i",
    "args_sizes_get": "ii:i",
    "clock_res_get": "ii:i",
    "clock_time_get": "iIi:i",
    "environ_get": "ii:i",
    "environ_sizes_get": "ii:i",
    "fd_advise": "iIIi:i",
    "fd_allocate": "iII:i",
    "fd_close": "i:i",
    "fd_datasync": "i:i",
    "fd_fdstat_get": "ii:i",
    "fd_fdstat_set_flags": "ii:i",
    "fd_fdstat_set_rights": "iII:i",
    "fd_filestat_get": "ii:i",
    "fd_filestat_set_size": "iI:i",
    "fd_filestat_set_times": "iIIi:i",
    "fd_pread": "iiiIi:i",
    "fd_prestat_dir_name": "iii:i",
    "fd_prestat_get": "ii:i",
    "fd_pwrite": "iiiIi:i",
    "fd_read": "iiii:i",
    "fd_readdir": "iiiIi:i",
    "fd_renumber": "ii:i",
    "fd_seek": "iIii:i",
    "fd_sync": "i:i",
    "fd_tell": "ii:i",
    "fd_write": "iiii:i",
    "path_create_directory": "iii:i",
    "path_filestat_get": "iiiii:i",
    "path_filestat_set_times": "iiiiIIi:i",
    "path_link": "iiiiiii:i",
    "path_open": "iiiiiIIii:i",
    "path_readlink": "iiiiii:i",
    "path_remove_directory": "iii:i",
    "path_rename": "iiiiii:i",
    "path_symlink": "iiiii:i",
    "path_unlink_file": "iii:i",
    "poll_oneoff": "iiii:i",
    "proc_exit": "i:",
    "random_get": "ii:i",
    "sched_yield": ":i",
}

IMPORTS = {"env": HOST, "wasi_snapshot_preview1": WASI}

EXPORTS = {
    "aici_init": ":",
    "aici_create": ":i",
    "aici_init_prompt": "i:",
    "aici_mid_process": "i:",
}

# Exports that only programs for earlier versions of AICI have, for a clearer error.
EARLIER = {
    "aici_post_process": "generation 1 (of January to March 2024)",
    "aici_pre_process": "generation 1 (of January to March 2024)",
    "aici_process": "its second draft (of November 2023)",
    "aici_process_prompt": "its first draft (of October 2023)",
    "aici_append_token": "its first draft (of October 2023)",
}


@dataclass(frozen=True)
class _Export:
    name: str
    kind: int
    index: int


def audit(wasm: bytes, limits: WasmLimits) -> bytes:
    """Check a module. Returns it with its mutable globals exported, ready to compile. Raises `GuideError` for a module
    that is not allowed."""
    if len(wasm) > limits.module_bytes:
        raise GuideError(
            f"the WASM module has {len(wasm)} bytes; at most {limits.module_bytes} are allowed: strip it, or raise "
            "WasmLimits.module_bytes"
        )
    sections = wasm_sections.sections(wasm)
    by_kind = {section.kind: section for section in sections}
    unknown = [s.kind for s in sections if s.kind > wasm_sections.DATA_COUNT]
    if unknown:
        raise GuideError(
            f"the WASM module has a section of kind {unknown[0]}, of a proposal (exceptions, say) that weft does "
            "not allow; compile it for plain wasm32"
        )

    def reader(kind: int) -> Reader:
        section = by_kind.get(kind, Section(kind, 0, 0))
        # A missing section is read as an empty vector.
        return Reader(wasm, section.start, section.end) if kind in by_kind else Reader(b"\0")

    exports = reader(wasm_sections.EXPORT).vector(_export)
    _refuse_earlier({export.name for export in exports})
    types = reader(wasm_sections.TYPE).vector(_signature)
    functions = [_imported(r, types) for r in _items(reader(wasm_sections.IMPORT))]
    functions += [_type(types, index) for index in reader(wasm_sections.FUNCTION).vector(Reader.number)]
    _check_memory(reader(wasm_sections.MEMORY), limits)
    _check_tables(reader(wasm_sections.TABLE), limits)
    _check_exports(exports, functions)
    mutable = [i for i, is_mutable in enumerate(reader(wasm_sections.GLOBAL).vector(_global)) if is_mutable]
    reader(wasm_sections.ELEMENT).vector(_element)
    reader(wasm_sections.DATA).vector(_data)
    for body in reader(wasm_sections.CODE).vector(lambda r: r.take(r.number())):
        if instruction := _core.aici_table_change(body):
            raise GuideError(f"the WASM program changes a table ({instruction}), which weft can't take back")
    return _rewritten(wasm, sections, mutable)


def _items(reader: Reader) -> list[Reader]:
    """Read the length of a vector. Returns the reader repeated that many times, so that a comprehension can read one
    item after the other."""
    return [reader] * reader.count()


def _refuse_earlier(names: set[str]) -> None:
    if "aici_mid_process" in names and "aici_post_process" not in names:
        return
    for name, generation in EARLIER.items():
        if name in names:
            raise GuideError(
                f"the program exports {name}: it is of AICI's interface in {generation}. weft runs generation 2 "
                "(aici_mid_process, AICI 0.1.0 and later); build it with a newer SDK"
            )


def _signature(reader: Reader) -> str:
    if reader.byte() != 0x60:
        raise GuideError(
            "the WASM module has a type that is no function's, of a proposal that weft does not allow; compile it for "
            "plain wasm32"
        )
    parameters = reader.vector(_value)
    return f"{''.join(parameters)}:{''.join(reader.vector(_value))}"


def _value(reader: Reader) -> str:
    return LETTERS.get(reader.byte(), "?")


def _type(types: list[str], index: int) -> str:
    if index >= len(types):
        raise GuideError(f"the WASM module names its type {index}, which is not there")
    return types[index]


def _imported(reader: Reader, types: list[str]) -> str:
    """Read an import. Returns its signature. Raises `GuideError` for anything but a known function."""
    module, name, kind = reader.name(), reader.name(), reader.byte()
    label = f"{module}.{name}"[:80]
    if kind != FUNCTION_KIND:
        kind_name = KINDS[kind] if kind < len(KINDS) else "thing of an unknown kind"
        raise GuideError(
            f"the program imports the {kind_name} {label}; programs may import functions only: define it in the module "
            "(a linker's --import-memory must be left out)"
        )
    expected = IMPORTS.get(module, {}).get(name)
    if expected is None:
        raise GuideError(
            f"the program imports {label}, which weft does not have: a program has AICI's aici_host_ functions, and "
            "stubs of those of WASI that standard libraries need; no network, no threads"
        )
    signature = _type(types, reader.number())
    if signature != expected:
        raise GuideError(f"the program imports {label} as ({signature}); it is ({expected}) (i: i32, I: i64)")
    return signature


def _check_memory(reader: Reader, limits: WasmLimits) -> None:
    memories = reader.vector(_limits)
    if len(memories) != 1:
        raise GuideError(
            f"the program has {len(memories)} memories; it must have one and export it as memory"
        )
    flags, min_pages = memories[0]
    if flags & 2:
        raise GuideError("the program's memory is shared between threads; compile it without threads")
    if flags & 4:
        raise GuideError("the program's memory has 64-bit addresses; compile it for wasm32")
    if flags & ~1:
        raise GuideError("the program's memory has pages of its own size; compile it for plain wasm32")
    if min_pages * PAGE > limits.memory_bytes:
        raise GuideError(
            f"the program's memory begins with {min_pages * PAGE} bytes; at most {limits.memory_bytes} are allowed: "
            "raise WasmLimits.memory_bytes"
        )


def _limits(reader: Reader) -> tuple[int, int]:
    """Read the limits of a memory or table. Returns the flags and the minimum size."""
    flags = reader.byte()
    minimum = reader.number(10)
    if flags & 1:  # a maximum
        reader.number(10)
    if flags & 8:  # a page size
        reader.number()
    return flags, minimum


def _check_tables(reader: Reader, limits: WasmLimits) -> None:
    tables = reader.vector(_table)
    if len(tables) > 1:
        raise GuideError(
            f"the program has {len(tables)} tables; it may have one: compile it for plain wasm32"
        )
    if tables and tables[0] > limits.table_elements:
        raise GuideError(
            f"the program's table has {tables[0]} elements; at most {limits.table_elements} are allowed: raise "
            "WasmLimits.table_elements"
        )


def _table(reader: Reader) -> int:
    """Read a table. Returns its minimum size."""
    if reader.byte() != 0x70:
        raise GuideError("the program has a table that does not hold functions; compile it for plain wasm32")
    flags, minimum = _limits(reader)
    if flags & ~1:
        raise GuideError("the program's table is shared or has 64-bit indices; compile it for plain wasm32")
    return minimum


def _global(reader: Reader) -> bool:
    """Read a global. Returns whether it is mutable."""
    if reader.byte() not in LETTERS:
        raise GuideError("the program has a global that is a reference; compile it for plain wasm32")
    is_mutable = reader.byte() == 1
    _constant(reader)
    return is_mutable


def _constant(reader: Reader) -> None:
    """Skip a constant expression, the initial value of a global or the offset of a segment."""
    while (opcode := reader.byte()) != 0x0B:
        if opcode in (0x23, 0x41, 0x42, 0xD0, 0xD2):
            reader.number(10)
        elif opcode in (0x43, 0x44):
            reader.take(4 if opcode == 0x43 else 8)
        elif opcode == 0xFD and reader.number() == 12:
            reader.take(16)
        elif opcode not in (0x6A, 0x6B, 0x6C, 0x7C, 0x7D, 0x7E):
            raise GuideError(
                "the program has an initial value that weft can't read; compile it for plain wasm32"
            )


def _element(reader: Reader) -> None:
    """Skip an active element segment, which is copied to the table when the program starts. Raises `GuideError` for any
    other kind."""
    flags = reader.number()
    if flags & 1 or flags > 7:
        raise GuideError(
            "the program has a passive element segment, whose state weft can't take back; compile it for plain wasm32"
        )
    if flags & 2:
        reader.number()
    _constant(reader)
    if flags & 2:
        reader.byte()
    reader.vector(_constant if flags & 4 else lambda r: (r.number(), None)[1])


def _data(reader: Reader) -> None:
    """Skip an active data segment, which is copied to memory when the program starts. Raises `GuideError` for a passive
    one."""
    flags = reader.number()
    if flags not in (0, 2):
        raise GuideError(
            "the program has a passive data segment, whose state weft can't take back; compile it without threads"
        )
    if flags == 2:
        reader.number()
    _constant(reader)
    reader.take(reader.number())


def _export(reader: Reader) -> _Export:
    return _Export(reader.name(), reader.byte(), reader.number())


def _check_exports(exports: list[_Export], functions: list[str]) -> None:
    by_name = {export.name: export for export in exports}
    reserved = next((name for name in by_name if name.startswith(GLOBAL_PREFIX)), None)
    if reserved is not None:
        raise GuideError(
            f"the program exports {reserved[:80]}; names that begin with {GLOBAL_PREFIX} are weft's own"
        )
    if "memory" not in by_name or by_name["memory"].kind != MEMORY_KIND:
        raise GuideError('the program must export its memory as "memory"')
    for name, expected in EXPORTS.items():
        export = by_name.get(name)
        if export is None or export.kind != FUNCTION_KIND or export.index >= len(functions):
            raise GuideError(
                f"the program does not export the function {name}; a program of AICI's interface, generation 2, has "
                f"{', '.join(EXPORTS)}"
            )
        if functions[export.index] != expected:
            raise GuideError(
                f"the program's {name} is ({functions[export.index]}); it must be ({expected}) (i: i32, I: i64)"
            )


def _rewritten(wasm: bytes, sections: list[Section], mutable: list[int]) -> bytes:
    """Write the module again, and export the globals with the indices `mutable`. Custom sections, which only debuggers
    read, are dropped."""
    out = bytearray(wasm_sections.HEADER)
    for section in sections:
        content = wasm[section.start : section.end]
        if section.kind == wasm_sections.CUSTOM:
            continue
        if section.kind == wasm_sections.EXPORT:
            reader = Reader(content)
            content = encoded(reader.number() + len(mutable)) + content[reader.at :]
            for index in mutable:
                name = f"{GLOBAL_PREFIX}{index}".encode()
                content += encoded(len(name)) + name + bytes([GLOBAL_KIND]) + encoded(index)
        out += bytes([section.kind]) + encoded(len(content)) + content
    return bytes(out)
