"""What a WASM module must be before it is compiled.

It may import functions of the interface and nothing else, and nothing of its state may lie where a copy of its memory
and its globals would miss it: so no passive segments, and no instruction that changes a table. Mutable globals are
exported under names of weft's own, for the host to copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.aici import sections as wasm_sections
from weft.aici.code import refuse_table_changes
from weft.aici.interface import EARLIER, EXPORTS, IMPORTS
from weft.aici.sections import Reader, Section, encoded
from weft.errors import GuideError
from weft.grammar.wasm_limits import WasmLimits

GLOBAL_PREFIX = "weft_global_"
PAGE = 65536

FUNCTION_KIND, MEMORY_KIND, GLOBAL_KIND = 0, 2, 3
KINDS = ("function", "table", "memory", "global", "tag")
LETTERS = {0x7F: "i", 0x7E: "I", 0x7D: "f", 0x7C: "F", 0x7B: "v"}


@dataclass(frozen=True)
class _Export:
    name: str
    kind: int
    index: int


def audit(wasm: bytes, limits: WasmLimits) -> bytes:
    """The module as it is to be compiled. Raises `GuideError` for one that is not allowed, and says why."""
    if len(wasm) > limits.module_bytes:
        raise GuideError(
            f"the WASM module has {len(wasm)} bytes; at most {limits.module_bytes} are allowed: strip it, or raise "
            "WasmLimits.module_bytes"
        )
    found = wasm_sections.sections(wasm)
    by_kind = {section.kind: section for section in found}
    unknown = [s.kind for s in found if s.kind > wasm_sections.DATA_COUNT]
    if unknown:
        raise GuideError(
            f"the WASM module has a section of kind {unknown[0]}, of a proposal (exceptions, say) that weft does "
            "not allow; compile it for plain wasm32"
        )

    def reader(kind: int) -> Reader:
        section = by_kind.get(kind, Section(kind, 0, 0))
        # A section that is not there is one with nothing in it.
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
        refuse_table_changes(body)
    return _rewritten(wasm, found, mutable)


def _items(reader: Reader) -> list[Reader]:
    """The reader once for each item of a vector; the caller must read each."""
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
    """The signature of the next function that is imported."""
    module, name, kind = reader.name(), reader.name(), reader.byte()
    label = f"{module}.{name}"[:80]
    if kind != FUNCTION_KIND:
        what = KINDS[kind] if kind < len(KINDS) else "thing of an unknown kind"
        raise GuideError(
            f"the program imports the {what} {label}; programs may import functions only: define it in the module "
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
    flags, smallest = memories[0]
    if flags & 2:
        raise GuideError("the program's memory is shared between threads; compile it without threads")
    if flags & 4:
        raise GuideError("the program's memory has 64-bit addresses; compile it for wasm32")
    if flags & ~1:
        raise GuideError("the program's memory has pages of its own size; compile it for plain wasm32")
    if smallest * PAGE > limits.memory_bytes:
        raise GuideError(
            f"the program's memory begins with {smallest * PAGE} bytes; at most {limits.memory_bytes} are allowed: "
            "raise WasmLimits.memory_bytes"
        )


def _limits(reader: Reader) -> tuple[int, int]:
    """Flags and the smallest size of a memory or table."""
    flags = reader.byte()
    smallest = reader.number(10)
    if flags & 1:
        reader.number(10)
    if flags & 8:
        reader.number()
    return flags, smallest


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
    """The smallest size of a table."""
    if reader.byte() != 0x70:
        raise GuideError("the program has a table that does not hold functions; compile it for plain wasm32")
    flags, smallest = _limits(reader)
    if flags & ~1:
        raise GuideError("the program's table is shared or has 64-bit indices; compile it for plain wasm32")
    return smallest


def _global(reader: Reader) -> bool:
    """Whether a global may change."""
    if reader.byte() not in LETTERS:
        raise GuideError("the program has a global that is a reference; compile it for plain wasm32")
    is_mutable = reader.byte() == 1
    _constant(reader)
    return is_mutable


def _constant(reader: Reader) -> None:
    """Skip a constant expression."""
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
    """Skip a segment of a table that is copied when the program starts. Any other is refused."""
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
    taken = next((name for name in by_name if name.startswith(GLOBAL_PREFIX)), None)
    if taken is not None:
        raise GuideError(
            f"the program exports {taken[:80]}; names that begin with {GLOBAL_PREFIX} are weft's own"
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


def _rewritten(wasm: bytes, found: list[Section], mutable: list[int]) -> bytes:
    """The module with the globals `mutable` exported, and without what only debuggers read."""
    out = bytearray(wasm_sections.HEADER)
    for section in found:
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
