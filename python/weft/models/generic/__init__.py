"""Models that transformers' code runs, over weft's pages, states and operations."""
