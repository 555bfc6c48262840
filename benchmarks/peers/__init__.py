"""Compares weft with llama.cpp, vLLM and transformers: the same prompts and limits, in turns (README.md)."""
