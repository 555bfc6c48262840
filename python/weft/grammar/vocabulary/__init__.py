"""A tokenizer's vocabulary in the form that grammar libraries need. Imports no other part of `weft.grammar`."""
