"""The first line of an exported file: which model, on how many GPUs, of which kind; `--from` reads it again.

The arguments of an engine do not say how many processes start, so the number of data-parallel ranks would be lost.
"""

import re

from ..layout.layout import Layout

_HEADING = re.compile(r'^(?:# |""")\S.* on (\d{1,7}) (?:GPUs|x ([\w.-]+)): ')


def heading(layout: Layout, model: str, gpu: str) -> str:
    """Return the line, without what makes it a comment; `gpu` is a name of the catalog, or empty."""
    return f"{model} on {layout.ranks} {f'x {gpu}' if gpu else 'GPUs'}: {layout.summary}."


def headed(text: str) -> tuple[int, str]:
    """Return how many GPUs the first line of an exported file names, and which; 0 and "" where it names none."""
    found = _HEADING.match(text.partition("\n")[0])
    return (int(found[1]), found[2] or "") if found else (0, "")
