"""Results for programs: JSON and JUnit's XML."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree as xml

from ....exercises.base import Outcome
from ..judge.result import Result
from ..store.conditions import Conditions

# What XML 1.0 cannot hold, not even escaped; surrogates stand for bytes of file names that are not UTF-8.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def results_json(results: Iterable[Result], conditions: Conditions) -> str:
    """Return all results with their verdicts as JSON; the answers are left out."""
    entries = [{**{k: v for k, v in asdict(r).items() if k != "answers"}, **_points(r)} for r in results]
    return json.dumps({**asdict(conditions), "results": entries}, indent=1)


def _points(r: Result) -> dict[str, float | bool | None]:
    return {"total": r.total if r.has_grade else None, "maximum": r.maximum, "blank": r.blank}


def students_in(path: Path) -> set[str]:
    """Return the students whom the results of a run name, as people saw them; none if there is no such file."""
    try:
        return {str(r["student"]) for r in json.loads(path.read_text(encoding="utf-8"))["results"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def junit(results: Iterable[Result], conditions: Conditions) -> str:
    """Return all results as JUnit XML: a test suite for each student and exercise, a test case for each check.

    A missed check is a failure with its diagnosis. It is an error if the submission did not run to its end, or not at
    all, and skipped if the submission is missing or the part was not attempted.
    """
    suites = xml.Element("testsuites", name="grades")
    for r in results:
        kind = {"graded": "failure", "blank": "skipped", "missing": "skipped"}.get(r.status, "error")
        kinds = ["skipped" if v.outcome is Outcome.NOT_ATTEMPTED else kind for v in r.verdicts if not v.passed]
        names = {"failure": "failures", "error": "errors", "skipped": "skipped"}
        counts = {"tests": len(r.verdicts)} | {name: kinds.count(each) for each, name in names.items()}
        numbers = {key: str(count) for key, count in counts.items()}
        suite = xml.SubElement(suites, "testsuite", name=_clean(f"{r.exercise} {r.student}"), **numbers)
        suite.set("time", f"{r.seconds:.3f}")
        properties = xml.SubElement(suite, "properties")
        facts = {"status": r.status, "reason": r.reason, "seed": conditions.seed, "course version": conditions.course}
        for name, value in [*facts.items(), *(("flag", flag) for flag in r.flags)]:
            xml.SubElement(properties, "property", name=name, value=_clean(str(value)))
        for v in r.verdicts:
            case = xml.SubElement(suite, "testcase", classname=_clean(f"{r.exercise}.{r.student}"), name=v.check)
            if not v.passed:
                how = "skipped" if v.outcome is Outcome.NOT_ATTEMPTED else kind
                outcome = xml.SubElement(case, how, message=_clean(v.diagnosis))
                outcome.text = _clean(f"{v.rule}\n{v.hint}")
    xml.indent(suites, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(suites, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _NO_XML.sub(lambda match: ascii(match[0])[1:-1], text)
