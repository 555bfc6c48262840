"""Other projects' clients against `weft serve`, each in an environment of its own (`make test-clients`).

    python tests/clients/run.py [--work build/clients] [NAME ...]

An environment is made once, of what pip has today; it needs network. A client fails where its script does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft import package_model_path

HERE = Path(__file__).parent
CLIENTS = {
    "anthropic": ["anthropic"],
    "litellm": ["litellm", "mcp"],
    "langchain": ["langchain-openai"],
    "instructor": ["instructor"],
    "guidance": ["guidance", "openai"],
    "openai": ["openai"],
    "pydantic": ["pydantic"],
    "pydantic_ai": ["pydantic-ai-slim[openai]"],
    "lm_eval": ["lm-eval[api]", "transformers", "datasets"],
}
TORCH_FREE = {*CLIENTS} - {"lm_eval"}
KEY = "a-key-of-tests"


def environment(name: str, work: Path) -> Path:
    """The Python of a client's environment, made if need be. `lm_eval` wants torch, which is the one that runs here."""
    folder = work / name
    python = folder / "bin" / "python"
    if not (folder / "made").is_file():
        shares = [] if name in TORCH_FREE else ["--system-site-packages"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", *shares, str(folder)], check=True)
        if shares:  # the venv of a venv sees the base alone
            (site,) = (folder / "lib").glob("python*/site-packages")
            (site / "here.pth").write_text(
                "\n".join(path for path in sys.path if path.endswith("site-packages"))
            )
        install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", *CLIENTS[name]]
        subprocess.run(install, check=True)
        (folder / "made").touch()
    return python


@contextmanager
def serving() -> Iterator[str]:
    """`weft serve`; its address."""
    command = [sys.executable, "-m", "weft.cli", "serve", "--port", "0", "--api-key", f"tests={KEY}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if (found := re.search(r"http://127.0.0.1:\d+", line)) is not None:
            break
    else:
        raise SystemExit("".join(said))
    reading = threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True)
    reading.start()
    try:
        yield found[0]
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*CLIENTS, []], default=[])
    parser.add_argument("--work", type=Path, default=Path("build/clients"))
    args = parser.parse_args()
    failed = []
    with serving() as url:
        for name in args.names or CLIENTS:
            python = environment(name, args.work)
            settings = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1"}
            settings["ANTHROPIC_BASE_URL"] = url
            settings |= {"OPENAI_API_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            settings["TOKENIZER"] = str(package_model_path())
            settings |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONPATH": str(HERE)}
            run = subprocess.run([str(python), str(HERE / f"with_{name}.py")], env=settings, timeout=600)
            print(f"{name}: {'ok' if run.returncode == 0 else 'FAILED'}", flush=True)
            failed += [name] * (run.returncode != 0)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
