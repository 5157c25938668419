"""References from lab to lab. Sources name a lab by its topic; the number is in its file's name alone.

In Markdown, [[topic]] becomes "lab NN" and [[#topic]] "NN", both as links; [[Topic]] begins a sentence: "Lab NN".
So a lab is inserted or moved by renaming files.
"""

import re

from .source import BuildError, Source, sources

_REFERENCE = re.compile(r"\[\[(#?)(\w+)\]\]")


def with_numbers(text: str, source: Source) -> str:
    """Return the Markdown `text` of `source` with its references as links.

    Raises:
        BuildError: there is no lab of that topic.
    """
    labs = {lab.topic: lab for lab in sources()}

    def link(match: re.Match) -> str:
        lab = labs.get(match[2].lower())
        if lab is None:
            raise BuildError(f"{source.name}: there is no lab called {match[2]!r}.")
        word = "" if match[1] else "Lab " if match[2][0].isupper() else "lab "
        return f"[{word}{lab.number}]({lab.name}.ipynb)"

    return _REFERENCE.sub(link, text)
