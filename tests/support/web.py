"""A web server on this machine that serves a folder."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Silent(SimpleHTTPRequestHandler):
    """Serves files, always whole; what is below `private` is forbidden."""

    def send_head(self):  # type: ignore[no-untyped-def]
        if self.path.startswith("/private/"):
            self.send_error(403)
            return None
        return super().send_head()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder; yields its address."""
    handler = functools.partial(_Silent, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
