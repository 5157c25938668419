"""Grade a folder of submissions: `grade` is the entry point.

The rooms, in the order in which a submission passes through them: `intake` finds its answers, `run` runs them, `judge`
reaches verdicts, `store` keeps results, `report` writes what people read.
"""

from typing import Any

__all__ = ["GradeError", "grade"]


def __getattr__(name: str) -> Any:
    """Import the grader when it is asked for: the command line needs its options without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import grading

    return getattr(grading, name)
