"""A local server that speaks as much of the Hugging Face hub's protocol as a download of a model needs."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """A model of the hub. `is_gated`: its files are refused, as without consent. `cut_at`: the first answer with a file
    of weights ends after this number of bytes, as if the connection broke."""

    files: dict[str, bytes]
    is_gated: bool = False
    cut_at: int | None = None


@dataclass
class Hub:
    """A running hub. `requests` lists the method, the path and the Range header of each request."""

    url: str
    repositories: dict[str, Repository]
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def downloads(self) -> list[str]:
        """The names of the files that were downloaded."""
        return [
            path.rpartition("/")[2]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]


class HubServer:
    """Runs a hub on a free port. A context manager."""

    def __init__(self, repositories: dict[str, Repository]) -> None:
        server = self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        hub = self.hub = Hub(f"http://127.0.0.1:{server.server_port}", repositories)
        setattr(server, "hub", hub)  # noqa: B010  # read by the handler
        self._thread = threading.Thread(target=server.serve_forever, args=(0.01,))

    def __enter__(self) -> Hub:
        self._thread.start()
        return self.hub

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, has_body: bool) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = urlsplit(self.path).path.strip("/")
        hub.requests.append((self.command, path, self.headers.get("Range")))
        name = path.removeprefix("api/models/").partition("/resolve/")[0]
        repository = hub.repositories.get(name)
        if repository is None:
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"}, has_body)
        if path.startswith("api/models/"):
            return self._send(200, json.dumps(_info(name, repository)).encode(), {}, has_body)
        if repository.is_gated:
            return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, has_body)
        file = path.partition("/resolve/")[2].partition("/")[2]
        data = repository.files.get(file)
        if data is None:
            return self._send(
                404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, has_body
            )
        self._send_file(repository, file, data, has_body)

    def _send_file(self, repository: Repository, file: str, data: bytes, has_body: bool) -> None:
        tag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        range = self.headers.get("Range")
        start = int(range.removeprefix("bytes=").rstrip("-")) if range else 0
        if range:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = repository.cut_at
        if has_body and cut is not None and file.endswith(".safetensors"):
            repository.cut_at = None
            self.close_connection = True
            self._send(200, data, headers, has_body, shown=cut)
        else:
            self._send(206 if range else 200, data[start:], headers, has_body)

    def _send(
        self, status: int, data: bytes, headers: dict[str, str], has_body: bool, shown: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if has_body:
            self.wfile.write(data[:shown])


def _info(name: str, repository: Repository) -> dict[str, object]:
    files = [
        {"rfilename": file, "size": len(data), "blobId": "0" * 40} for file, data in repository.files.items()
    ]
    return {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "tags": [], "private": False}
