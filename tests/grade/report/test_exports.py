"""Results for programs: JSON and JUnit XML."""

import json
from xml.etree import ElementTree

from helpers.course.grade.report.exports import junit, results_json
from helpers.exercises.base import Outcome
from helpers.exercises.checking import NOT_ATTEMPTED_YET

from ..results import CONDITIONS, TOO_LARGE, missing, result

ODD = "caf\udce9 \x00\x0b\x1b[31m\ufffe <b>&\"' 李 \U0001f600"


def test_json_holds_everything_but_the_answers():
    document = json.loads(results_json([result(ODD, missed={"scale_grows": ODD}, flags=["f"])], CONDITIONS))
    (entry,) = document["results"]
    assert (document["seed"], document["course"], entry["student"], entry["flags"]) == (11, "1.2+abc", ODD, ["f"])
    assert (entry["total"], entry["maximum"], "answers" in entry) == (9, 10, False)
    (nothing,) = json.loads(results_json([missing()], CONDITIONS))["results"]
    assert (nothing["total"], nothing["maximum"]) == (None, 10)  # no grade, which is not 0
    assert [v["diagnosis"] for v in entry["verdicts"] if not v["points"]] == [ODD]


def test_junit_tells_failures_errors_and_skips_apart():
    wrong = {"scale_grows": TOO_LARGE}
    blank = {"scale_grows": (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET), "memory_falls": TOO_LARGE}
    results = [result(ODD, missed={"scale_grows": ODD}), result("ben", missed=wrong, status="crashed"), missing("eve")]
    results.append(result("fay", missed=blank))
    suites = ElementTree.fromstring(junit(results, CONDITIONS).encode())
    counts = [tuple(int(s.get(k)) for k in ("tests", "failures", "errors", "skipped")) for s in suites]
    assert counts == [(10, 1, 0, 0), (10, 0, 1, 0), (10, 0, 0, 10), (10, 1, 0, 1)]
    assert suites[1].find(".//error").get("message") == TOO_LARGE
    assert "not submitted" in suites[2].find(".//skipped").get("message")
    assert suites[0].find(".//failure").get("message").startswith(r"caf\udce9 \x00\x0b\x1b[31m\ufffe <b>&")
    assert {p.get("name"): p.get("value") for p in suites[1].find("properties")}["course version"] == "1.2+abc"
