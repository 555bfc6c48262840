"""Writes answers in each route's form, from increments of text."""
