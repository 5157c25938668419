"""python -m helpers page: the planner as a page in the browser, served to this machine alone."""

import argparse
import contextlib
import threading
import webbrowser

from ..planner import RecipeError
from ..planner.amounts import whole

PORT = 8866


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("--port", type=whole(), default=PORT, metavar="N", help=f"port on 127.0.0.1 (default {PORT})")
    parser.add_argument("--no-browser", action="store_true", help="only serve the page")


def run(args: argparse.Namespace) -> int:
    """Serve the page until it is interrupted; return the exit status.

    Raises:
        RecipeError: no such port, or another program has it.
    """
    from .server import Page

    if not 1024 <= args.port <= 65535:
        raise RecipeError(f"--port is {args.port}; it must be between 1024 and 65535.")
    try:
        page = Page(args.port)
    except OSError as error:
        raise RecipeError(
            f"Port {args.port} is not free ({error.strerror}): choose another with --port N, or with "
            "make planner PLANNER_PORT=N."
        ) from None
    with page, contextlib.suppress(KeyboardInterrupt):
        print(f"The planner is at {page.address}; Ctrl-C ends it.", flush=True)
        threading.Thread(target=page.warm_up, daemon=True).start()
        if not args.no_browser:
            webbrowser.open(page.address)
        page.serve_forever()
    return 0
