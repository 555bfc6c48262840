"""A tokenizer's vocabulary in the form that grammar libraries need. Imports nothing else of the grammar."""
