"""`weft serve`: an HTTP server with OpenAI's API, over one or several engines.

A request passes these rooms: `connections` and `guard` protect the server; a route (`routes`) parses the body
(`protocol`) and reads it into a job (`reading`); `responding` submits the job and sends its answer (`writing`). A
streamed token meets neither pydantic nor middleware.
"""
