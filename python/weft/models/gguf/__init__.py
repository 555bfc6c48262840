"""GGUF files, which hold a model, its sizes and its tokenizer in one: made from model directories, and into them."""

from weft.models.gguf.reading import gguf_to_directory
from weft.models.gguf.writing import directory_to_gguf

__all__ = ["directory_to_gguf", "gguf_to_directory"]
