"""Tokenizers and chat templates of model directories: text to token ids and back, conversations to text."""
