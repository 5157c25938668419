"""What a probe may return: measurements. Sentences are for the judge to write.

Evidence is judged a second time with each of its texts replaced by a mark. Where the mark turns up in a diagnosis,
the judge has passed on a text that was written beside the learner's code. Names are measurements: a dtype, a layer,
a parameter. So a text is a string with a space in it.
"""

from collections.abc import Mapping
from typing import Any

from helpers.exercises.base import Check, Evidence, Part

MARK = "\u2042 evidence \u2042"
QUOTED = {
    "text": "the message of an error that the answer raised, beside the error's name",
    **{f"files_{which}": "names of files, after keys of a state" for which in ("missing", "beside", "differ")},
    "at": "the phase, the operation and the module of a peak, as the meter names them",
}


def keys_of(evidence: Any) -> set[str]:
    """Return all keys in `evidence`, at any depth."""
    if isinstance(evidence, dict):
        return set(evidence).union(*map(keys_of, evidence.values()))
    if isinstance(evidence, list | tuple):
        return set().union(*map(keys_of, evidence))
    return set()


def marked(evidence: Any, keys: set[str]) -> Any:
    """Return `evidence` with a mark instead of each text and of each key with a space that is not one of `keys`."""
    if isinstance(evidence, dict):
        return {
            MARK if " " in key and key not in keys else key: value if key in QUOTED else marked(value, keys)
            for key, value in evidence.items()
        }
    if isinstance(evidence, list | tuple):
        return [marked(value, keys) for value in evidence]
    return MARK if isinstance(evidence, str) and " " in evidence else evidence


def passes_text_on(check: type[Check], evidence: Evidence, expected: Evidence) -> bool:
    """Whether the judge of `check` puts a text of the evidence into its diagnosis."""
    keys = keys_of(expected) | set(QUOTED)
    changed = marked(evidence, keys)
    if changed == evidence:
        return False
    return MARK in (check.judge(changed, marked(expected, keys)) or "")


def assert_measurements(part: Part, evidence: Mapping[str, Evidence], expected: Mapping[str, Evidence]) -> None:
    """No text that a probe of `part` returned reaches a verdict. Errors have no evidence: the run reports them."""
    for check in part.checks:
        if "seen" in evidence[check.name()]:
            seen, right = evidence[check.name()]["seen"], expected[check.name()]["seen"]
            assert not passes_text_on(check, seen, right), f"{check.name()}: its probe writes what its judge should"
