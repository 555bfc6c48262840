"""Converts between model directories and GGUF files, which hold weights, config and tokenizer in one file."""

from weft.models.gguf.reading import gguf_to_directory
from weft.models.gguf.writing import directory_to_gguf

__all__ = ["directory_to_gguf", "gguf_to_directory"]
