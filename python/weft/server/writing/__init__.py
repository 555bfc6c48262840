"""Formats answers for each route, from increments of text."""
