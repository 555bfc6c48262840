"""Text to token ids and back, and conversations to text: what a directory's tokenizer.json and its neighbours say."""
