"""The HTTP routes. The generating ones read a body into a job and return the response that runs it."""
