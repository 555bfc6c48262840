"""Tensors in safetensors files: headers, memory maps, pages that are let go, and reading ahead."""

from __future__ import annotations

import gc
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from weft.errors import ModelError
from weft.models import stored
from weft.models.stored import MappedFiles, count_parameters, stored_tensors


def save(directory: Path, tensors: dict[str, Tensor], num_files: int = 1) -> Path:
    """Write tensors to files, with an index if there are several."""
    if num_files == 1:
        save_file(tensors, directory / "model.safetensors")
        return directory
    places: dict[str, str] = {}
    for number in range(num_files):
        names = list(tensors)[number::num_files]
        places |= dict.fromkeys(names, f"part-{number}.safetensors")
        save_file({name: tensors[name] for name in names}, directory / f"part-{number}.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return directory


def resident_bytes(address: int) -> int:
    """The bytes in memory of the mapping that holds an address."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
            is_inside = begin <= address < end
        elif is_inside and name == "Rss:":
            return int(rest.split()[0]) * 1024
    raise AssertionError(f"nothing is mapped at {address:x}")


@pytest.mark.parametrize("num_files", [1, 3])
def test_tensors_are_read_as_they_are_stored(num_files: int, tmp_path: Path) -> None:
    dtypes = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int8,
        torch.bool,
    )
    tensors = {str(dtype): (torch.randn(3, 5) * 9).to(dtype) for dtype in dtypes}
    tensors |= {"empty": torch.empty(0, 4), "scalar": torch.tensor(2.5)}
    headers = stored_tensors(save(tmp_path, tensors, num_files))
    assert count_parameters(tmp_path) == len(dtypes) * 15 + 1
    with MappedFiles(headers, list(tensors)) as files:
        got = {name: files.take(name) for name in reversed(tensors)}
    for name, tensor in tensors.items():
        assert headers[name].shape == tuple(tensor.shape)
        assert headers[name].num_bytes == tensor.numel() * tensor.element_size()
        assert got[name].dtype is tensor.dtype and torch.equal(got[name], tensor)


def test_a_tensor_at_an_odd_place_is_read(tmp_path: Path) -> None:
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    header["b"] = {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + b"\7" + struct.pack("<2f", 1.5, -2.0)
    (tmp_path / "model.safetensors").write_bytes(content)
    with MappedFiles(stored_tensors(tmp_path)) as files:
        assert files.take("b").tolist() == [1.5, -2.0] and files.take("a").tolist() == [7]


def test_pages_of_a_tensor_are_let_go_with_its_last_view(tmp_path: Path) -> None:
    size = 8 << 20
    save(tmp_path, {"a": torch.ones(size // 4), "b": torch.zeros(size // 4)})
    with MappedFiles(stored_tensors(tmp_path)) as files:
        tensors = [files.take("a"), files.take("b")]
        address = tensors[0].data_ptr()
        assert all(tensor.sum() in (0, size // 4) for tensor in tensors)
        assert resident_bytes(address) >= 2 * size
        view = tensors[0][5:9]
        tensors.clear()
        gc.collect()
        assert size <= resident_bytes(address) < 2 * size, "b is gone, and a has a view"
        held = files.take("b")
        del view
        gc.collect()
        assert resident_bytes(address) < size / 2
        assert not held.any()
    assert not held.any(), "a tensor outlives the files"


def test_files_are_read_ahead_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(8)]
    headers = stored_tensors(save(tmp_path, {name: torch.ones(1000) for name in names}))
    asked: list[int] = []
    monkeypatch.setattr(stored, "BYTES_AHEAD", 8000)
    monkeypatch.setattr(stored.os, "posix_fadvise", lambda file, begin, size, advice: asked.append(begin))
    with MappedFiles(headers, names) as files:
        for name in names:
            files.take(name)
            ahead = [begin for begin in list(asked) if begin > headers[name].begin]
            assert len(ahead) <= 3
    assert asked == sorted(asked)


def test_reading_ahead_ends_with_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the tensors are never taken, and if the system refuses."""
    headers = stored_tensors(save(tmp_path, {name: torch.ones(1000) for name in "abcdef"}))
    monkeypatch.setattr(stored, "BYTES_AHEAD", 1)
    with MappedFiles(headers, "abcdef") as files:
        assert files.take("c").sum() == 1000

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(stored.os, "posix_fadvise", refuse)
    with MappedFiles(headers, "abcdef") as files:
        assert files.take("f").sum() == 1000


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    headers = stored_tensors(save(tmp_path, {"a": torch.ones(3)}))
    (tmp_path / "model.safetensors").unlink()
    with (
        MappedFiles(headers) as files,
        pytest.raises(ModelError, match=r"model.safetensors: can't be mapped"),
    ):
        files.take("a")
