"""Answers as they come, and how each route writes them."""
