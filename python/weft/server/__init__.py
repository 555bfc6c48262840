"""`weft serve`: an HTTP server with OpenAI's API and Anthropic's, over one or several engines.

A request for an answer passes through these modules in order. `connections` and `guard` protect the server. A route
(`routes`) validates the body with `protocol` and converts it to a job with `reading`. `responding` submits the job and
sends the answer, which `writing` formats.

The path of a streamed token avoids pydantic and middleware, because each costs more than the event itself.
"""
