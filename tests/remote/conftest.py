"""A stand-in for the hub: its HTTP interface, as far as the real client uses it, on a port of this machine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class StandIn:
    """What it has and what happened. `files` are the contents by repository and name; their order is the listing's.

    `stops` is how many bytes of each GET of a large file are sent before the connection breaks, one entry for each;
    None sends all. `lies` are names whose content is not what their SHA-256 says. `gated` repositories refuse.
    """

    commit = "c" * 40

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.stops: list[int | None] = []
        self.lies: set[str] = set()
        self.gated: set[str] = set()
        self.ignores_ranges = False
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, range
        self.stalled = threading.Event()  # a transfer has been broken off
        self.holds = False  # keep the connection open instead of breaking it
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.cdn = f"http://localhost:{self._server.server_port}/cdn"  # large files come from another host

    def transfers(self) -> list[str | None]:
        """The ranges that were asked for of large files; None for all of one."""
        return [ranges for method, path, ranges in self.requests if method == "GET" and path.startswith("/cdn/")]

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: StandIn
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *arguments: Any) -> None:
        pass

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        if listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/main)?", path):
            self._list(listed[1])
        elif resolved := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(main|c{40})/(.+)", path):
            self._resolve(resolved[1], resolved[3])
        elif large := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._send_file(large[1], large[2])
        else:
            self._end(404, {"X-Error-Code": "EntryNotFound"})

    def _known(self, repo: str) -> bool:
        if repo in self.hub.gated:
            self._end(403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif repo not in self.hub.files:
            self._end(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found."})
        return repo in self.hub.files and repo not in self.hub.gated

    def _list(self, repo: str) -> None:
        if not self._known(repo):
            return
        siblings = []
        for name, data in self.hub.files[repo].items():
            lfs = {"sha256": _sha256(data), "size": len(data), "pointerSize": 134}
            siblings.append({"rfilename": name, "size": len(data), **({"lfs": lfs} if _is_large(name) else {})})
        about = {"id": repo, "modelId": repo, "sha": self.hub.commit, "siblings": siblings, "tags": []}
        self._end(200, {"Content-Type": "application/json"}, json.dumps(about).encode())

    def _resolve(self, repo: str, name: str) -> None:
        if not self._known(repo):
            return
        data = self.hub.files[repo].get(name)
        if data is None:
            self._end(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.hub.commit})
            return
        about = {"X-Repo-Commit": self.hub.commit}
        if _is_large(name):
            about |= {"X-Linked-Etag": f'"{_sha256(data)}"', "X-Linked-Size": str(len(data))}
            self._end(302, {**about, "Location": f"{self.hub.cdn}/{repo}/{name}"})
        else:
            self._end(200, {**about, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}, data)

    def _send_file(self, repo: str, name: str) -> None:
        data = self.hub.files[repo][name]
        if name in self.hub.lies:
            data = data[:-1] + bytes((data[-1] ^ 1,))
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(wanted[1]) if wanted and not self.hub.ignores_ranges else 0
        stop = self.hub.stops.pop(0) if self.hub.stops else None
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[start:] if stop is None else data[start : start + stop])
        if stop is not None:
            self.wfile.flush()
            self.hub.stalled.set()
            if self.hub.holds:
                self.hub.released.wait(60)
            self.close_connection = True

    def _end(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_large(name: str) -> bool:
    return name.endswith(".gguf")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def hub() -> Iterator[StandIn]:
    hub = StandIn()
    yield hub
    hub.close()
