"""GGUF files, which hold weights, config and tokenizer in one file: as models, and to and from model directories."""
