"""Sentences with code between backticks, as HTML."""

import html
import re


def inline_code(text: str) -> str:
    """Return `text` as HTML, safe between tags: what stands between two backticks on one line is set as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(text, quote=False))
