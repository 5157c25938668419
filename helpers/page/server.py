"""The server of the page: Python's own, for this machine alone.

An answer is a stream of JSON lines, so that the page shows each stage as it begins. One question is planned at a time.
A newer question of the same tab ends an older one at its next stage: nobody waits for it any more.
"""

import contextlib
import importlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from ..planner import RecipeError

LARGEST = 2**20  # bytes of a question
KEPT = 200  # answers
WAITING = "waiting for the previous plan"
_POLICY = "default-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


class Superseded(Exception):
    """The tab has asked something else since."""


class Page(ThreadingHTTPServer):
    """The page on a port of 127.0.0.1; 0 takes a free one."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.planning = threading.Lock()
        self.busy_with = WAITING
        self.newest: dict[str, int] = {}
        self.kept: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def warm_up(self) -> None:
        """Import what the first plan needs, while the page opens; questions wait until it is there."""
        with self.planning:
            self.busy_with = "importing PyTorch"
            for name in ("torch", "transformers"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            self.busy_with = WAITING

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Page

    def do_GET(self) -> None:
        """Send the page, or what its controls are."""
        path = self.path.partition("?")[0]
        if not self._from_here():
            return
        if path == "/":
            text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
            self._send(200, "text/html; charset=utf-8", text)
        elif path == "/controls":
            from .controls import to_json

            self._send(200, "application/json", json.dumps(to_json()))
        else:
            self._send(404, "text/plain", "not found")

    def do_POST(self) -> None:
        """Answer a question with lines of JSON."""
        if not self._from_here():
            return
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get_content_type() != "application/json" or not 0 < length <= LARGEST:
            self._send(400, "text/plain", "A question is JSON.")
            return
        from . import ask

        asked = json.loads(self.rfile.read(length))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        try:
            self._answer(asked)
        except (Superseded, BrokenPipeError, ConnectionResetError):
            pass
        except RecipeError as error:
            self._emit({"error": ask.in_words(str(asked.get("kind")), str(error))})
        except Exception as error:  # of a library that cannot do what is asked for; the page must not wait forever
            self._emit({"error": f"This cannot be planned ({type(error).__name__}: {' '.join(str(error).split())})."})

    def _answer(self, asked: dict[str, Any]) -> None:
        from . import ask, search

        tab, number = str(asked.get("tab")), int(asked.get("number", 0))
        self.server.newest[tab] = max(number, self.server.newest.get(tab, 0))

        def emit(event: dict[str, Any]) -> None:
            if self.server.newest[tab] != number:
                raise Superseded
            self._emit(event)

        question = ask.Asked(asked.get("kind", ""), asked.get("settings", {}), asked.get("config", ""))
        what = asked.get("what", "plan")
        if what == "export":
            with self._turn(emit):
                emit({"text": ask.export(question, str(asked.get("engine")))})
            return
        words = ["layout", *search.options(question)] if what == "search" else ["plan", *question.shown]
        emit({"command": ask.command(words), "stage": ""})
        self._planned((search.search if what == "search" else ask.plan), question, emit, words)

    @contextlib.contextmanager
    def _turn(self, emit: Callable) -> Iterator[None]:
        """Wait until nothing else is planned, and say so meanwhile."""
        while not self.server.planning.acquire(timeout=0.2):
            emit({"stage": self.server.busy_with})
        try:
            yield
        finally:
            self.server.planning.release()

    def _planned(self, how: Callable[..., None], question: Any, emit: Callable, words: list[str]) -> None:
        """Emit the kept answer, or plan when it is this question's turn."""
        key = json.dumps([*words, *question.options])
        if key not in self.server.kept:
            with self._turn(emit):
                events: list[dict[str, Any]] = []

                def keep(event: dict[str, Any]) -> None:
                    events.append(event)
                    emit(event)

                how(question, keep)
                self.server.kept[key] = [event for event in events if "stage" not in event]
                while len(self.server.kept) > KEPT:
                    self.server.kept.popitem(last=False)
        else:
            for event in self.server.kept[key]:
                emit(event)

    # -- around it

    def _from_here(self) -> bool:
        """Return whether the page itself asks; refuse what another site's page sends here."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        own = [f"{name}:{self.server.server_address[1]}" for name in ("127.0.0.1", "localhost")]
        if host in own and origin in (None, *(f"http://{name}" for name in own)):
            return True
        self._send(403, "text/plain", "This page is for this machine alone.")
        return False

    def _send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.end_headers()
        self.wfile.write(data)

    def _emit(self, event: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(event).encode() + b"\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: the terminal shows the address alone."""
