"""A stand-in for the official mirrors: a web server on this computer that can also misbehave."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from intercontinet.tasks.catalogue import Remote


class Mirror:
    """Serves ``files``, and remembers in ``asked`` each request's path and where it began.

    Set ``cut`` to break off every answer after so many bytes, ``patience`` to refuse any request after so many, and
    ``ranges`` to False to ignore Range headers.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, int]] = []
        self.cut: int | None = None
        self.patience: int | None = None
        self.ranges = True
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def add(self, path: str, content: bytes, md5: str | None = None) -> Remote:
        """Serve a file; its address, with the right checksum unless another is given."""
        self.files[f"/{path}"] = content
        url = f"http://127.0.0.1:{self._server.server_port}/{path}"
        return Remote(url, md5 or hashlib.md5(content).hexdigest(), len(content))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
                mirror.asked.append((self.path, start))
                content = mirror.files.get(self.path)
                if content is None or (mirror.patience is not None and len(mirror.asked) > mirror.patience):
                    self.send_error(404)
                elif mirror.ranges and start >= len(content) > 0:
                    self.send_error(416)
                else:
                    self._send(content, start if mirror.ranges else 0)

            def _send(self, content: bytes, start: int) -> None:
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                self.end_headers()
                self.wfile.write(content[start:][: mirror.cut])

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
