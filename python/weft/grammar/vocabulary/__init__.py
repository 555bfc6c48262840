"""A tokenizer's vocabulary as grammar libraries need it. Imports nothing else of the grammar."""
