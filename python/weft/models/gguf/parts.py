"""GGUF models in several files. The parts of a model are side by side, named NAME-00001-of-00003.gguf and so on. The
first one has the metadata, and each has some of the tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from weft.errors import ModelError
from weft.models.gguf.header import Entry, Header, read_header

PART = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""The name of a part. Names count from 1, and headers from 0."""
NUMBER, COUNT, NUM_TENSORS = "split.no", "split.count", "split.tensors.count"


def part_files(file: Path) -> list[Path]:
    """The files of the model to which `file` belongs, in order: the file alone, unless it is one of several parts.
    Raises `ModelError` for parts that are missing, and for one that has another name."""
    count = read_header(file).metadata.get(COUNT)
    if not isinstance(count, int) or count <= 1:
        return [file]
    # A link has any name.
    file = next((each for each in (file, file.resolve()) if PART.fullmatch(each.name)), file)
    named = PART.fullmatch(file.name)
    if named is None or int(named["count"]) != count:
        raise ModelError(
            f"{file}: is one of {count} parts of a model, and its name must say so: give all parts the names that they "
            f"were published with, which end with -00001-of-{count:05}.gguf and so on"
        )
    files = [file.with_name(name_of_part(named["model"], number, count)) for number in range(1, count + 1)]
    missing = [each.name for each in files if not each.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{file}: is one of {count} parts of a model, and there is no {missing[0]}{more} beside it; get all parts"
        )
    return files


def name_of_part(model: str, number: int, count: int) -> str:
    """The name of the file with part `number`, from 1 to `count`."""
    return f"{model}-{number:05}-of-{count:05}.gguf"


def first_part(files: Sequence[Path]) -> Path | None:
    """The first of `files`, if all of them are parts of one model."""
    models = {(named["model"], named["count"]) for file in files if (named := PART.fullmatch(file.name))}
    are_parts = len(models) == 1 and all(PART.fullmatch(file.name) for file in files)
    return min(files) if are_parts else None


def read_model_header(file: Path) -> Header:
    """The header of the model to which `file` belongs: the metadata of its first part, and the tensors of all. Raises
    `ModelError` for files that can't be read, and for parts that are missing or do not fit together."""
    files = part_files(file)
    headers = [read_header(each) for each in files]
    if len(files) == 1:
        return headers[0]
    tensors: dict[str, Entry] = {}
    num_tensors = headers[0].metadata.get(NUM_TENSORS)
    for number, header in enumerate(headers):
        found = [header.metadata.get(key) for key in (NUMBER, COUNT, NUM_TENSORS)]
        if found != [number, len(files), num_tensors]:
            raise ModelError(
                f"{header.file}: its header says part {found[0]} (from 0) of {found[1]} with {found[2]} tensors; by "
                f"its name and {files[0].name} it must be part {number} of {len(files)} with {num_tensors} tensors. "
                "Get the parts of one model"
            )
        twice = next((name for name in header.tensors if name in tensors), None)
        if twice is not None:
            raise ModelError(
                f"{header.file}: has the tensor {twice!r}, which {tensors[twice].file.name} has, too; get the parts of "
                "one model"
            )
        tensors |= header.tensors
    if num_tensors != len(tensors):
        raise ModelError(
            f"{files[0]}: the parts have {len(tensors)} tensors together, and {NUM_TENSORS!r} is {num_tensors}; get "
            "the parts of one model"
        )
    return Header(files[0], headers[0].metadata, tensors)
