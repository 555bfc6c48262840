"""The routes: each reads a body into a job and returns the response that answers it."""
