"""`weft serve`: an HTTP server that speaks OpenAI's API, over one or several engines.

A route reads a body (`protocol`) into a job (`reading`), and a response submits it and sends what comes (`writing`,
`responding.py`). Streaming runs no pydantic and no middleware that wraps bodies.
"""
