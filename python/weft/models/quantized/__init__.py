"""Quantised checkpoints in safetensors: one file for each method, with the names and the layout of its tensors."""
