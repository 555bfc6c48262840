"""Launches the work of a step: the decode iteration and its graphs, prompts, and page moves."""
