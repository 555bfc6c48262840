"""The HTTP routes. The generating routes convert a body to a job, and return the response that runs it."""
