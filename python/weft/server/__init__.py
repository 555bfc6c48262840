"""`weft serve`: an HTTP server with OpenAI's API, over one or several engines.

A request passes through these modules in order. `connections` and `guard` protect the server. A route (`routes`)
parses the body with `protocol` and reads it into a job with `reading`. `responding` submits the job and sends the
answer, which `writing` formats.

Streaming a token touches neither pydantic nor middleware, because both cost more than the event itself.
"""
