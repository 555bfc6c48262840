"""What every client asks, and what is right. Nothing of weft is imported: these run in environments without it."""

from __future__ import annotations

import os

URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
PROMPT = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string, "age": integer}\nJSON: '
MESSAGES = [{"role": "user", "content": PROMPT}]
ANSWER = {"name": "Ada Berg", "age": 31}
