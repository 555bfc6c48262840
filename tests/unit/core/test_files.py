"""Files of others and for others: damaged ones give typed errors, full disks leave nothing half written."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.engine.checkpoints import save_checkpoint
from weft.config.paths import model_directory
from weft.core.files import inside, read_json, write_whole
from weft.errors import ModelError, TokenizerError
from weft.models.loading import load_model
from weft.tokenizer.files import load_tokenizer


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path, "llama", num_hidden_layers=1)
    return tmp_path


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[" * 100_000, "nest too deep"),
        ('{"a": ' * 100_000, "nest too deep"),
        ('{"vocab_size": ' + "9" * 10_000 + "}", "can't be read as JSON"),
        ("[]", "it must hold an object"),
        ("", "can't be read as JSON"),
        (b"\xff\xfe{}", "can't be read as JSON"),
    ],
    ids=["brackets", "objects", "digits", "list", "empty", "no UTF-8"],
)
def test_a_damaged_config_is_a_model_error(content: str | bytes, reason: str, checkpoint: Path) -> None:
    (checkpoint / "config.json").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ModelError, match=reason):
        load_model(checkpoint)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match="is no file"):
        read_json(tmp_path / "config.json")


SIZES = ["max_position_embeddings", "vocab_size", "hidden_size", "num_hidden_layers"]


@pytest.mark.parametrize("value", [10**12, 2**31 - 1])
@pytest.mark.parametrize("key", SIZES)
def test_a_size_beyond_all_memory_is_a_model_error(value: int, key: str, checkpoint: Path) -> None:
    if key == "num_hidden_layers" and value < 10**12:
        value = 2
    change(checkpoint / "config.json", **{key: value})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError):
        load_model(checkpoint)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown_kib < 1 << 20, "it took what it could before it was refused"


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../b", "", 7, "a\0b"])
def test_an_index_does_not_lead_out_of_its_directory(name: object, checkpoint: Path) -> None:
    tensors = {"model.embed_tokens.weight": name}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": tensors}))
    with pytest.raises(ModelError, match="give one inside the directory"):
        load_model(checkpoint)


def test_a_file_inside_is_one_of_the_directory(tmp_path: Path) -> None:
    assert inside(tmp_path, "shards/one.safetensors", tmp_path) == tmp_path / "shards/one.safetensors"


@pytest.mark.slow
def test_a_tokenizers_own_code_is_never_run_and_nobody_is_asked(checkpoint: Path) -> None:
    change(
        checkpoint / "tokenizer_config.json",
        tokenizer_class="Evil",
        auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]},
    )
    ran = checkpoint / "ran"
    (checkpoint / "evil.py").write_text(
        f"open({str(ran)!r}, 'w')\nfrom transformers import PreTrainedTokenizerFast\n"
        "class Evil(PreTrainedTokenizerFast): pass\n"
    )
    program = f"""
import pathlib, sys
from weft.errors import TokenizerError
from weft.tokenizer.files import load_tokenizer
try:
    load_tokenizer(pathlib.Path({str(checkpoint)!r}))
except TokenizerError as error:
    print("refused")
else:
    print("loaded as data")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input="y\n" * 9, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("refused", "loaded as data")
    assert "Do you wish to run" not in done.stdout + done.stderr
    assert not ran.exists()


def test_a_damaged_tokenizer_is_a_tokenizer_error(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError):
        load_tokenizer(checkpoint)


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new(tmp_path: Path) -> None:
    program = f"""
import resource, signal
from pathlib import Path
from weft.core.files import write_whole
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
path = Path({str(tmp_path / "kept.json")!r})
write_whole(path, b"old")
for target in (path, path.with_name("new.json")):
    try:
        write_whole(target, b"x" * 1000)
    except OSError:
        print("failed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["failed", "failed"], done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"kept.json": b"old"}


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", b"text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"text"
    write_whole(Path("/dev/null"), b"text")


def test_what_the_shell_gave_as_standard_output_is_added_to(tmp_path: Path) -> None:
    """A pipe has no name that can be replaced, and of a file what was printed stays."""
    program = "import sys; from pathlib import Path; from weft.core.files import write_whole; "
    program += "print('first', flush=True); write_whole(Path('/dev/stdout'), b'second')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "first\nsecond"
    with (tmp_path / "out").open("w") as stream:
        subprocess.run([sys.executable, "-c", program], stdout=stream, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond"


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs /dev/shm")
def test_files_in_shared_memory_are_files() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "file")
        for text in (b"first and long", b"second"):
            write_whole(path, text)
        assert path.read_bytes() == b"second"


def test_a_folder_of_a_gguf_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"give the path of the GGUF file, .*model\.gguf"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("exists", [False, True])
def test_a_configuration_in_the_place_of_a_model_names_its_option(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "server.toml"
    if exists:
        path.touch()
    with pytest.raises(ModelError, match=r"is not a model; .* weft serve --config .*server\.toml$"):
        model_directory(path)
