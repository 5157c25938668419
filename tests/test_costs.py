"""Costs of tests are read from pytest's report, and decide what is slow."""

import ast

from helpers.core.files import ROOT

from . import costs

REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.planner.test_fit" name="test_it[a]" time="3.0" />
<testcase classname="tests.planner.test_fit" name="test_it[b-c[1]]" time="1.0" />
<testcase classname="tests.planner.test_fit" name="test_it[d]" time="0.0"><skipped /></testcase>
<testcase classname="tests.grade.test_grade.TestOne" name="test_points" time="0.7" />
<testcase classname="tests.grade.test_grade" name="test_nothing" time="0.01" />
</testsuite></testsuites>"""


def test_a_family_costs_the_sum_of_its_tests_that_ran(tmp_path):
    report = tmp_path / "tests.xml"
    report.write_text(REPORT, encoding="utf-8")
    assert costs.read_report(report) == {
        "tests/planner/test_fit.py::test_it": 4.0,
        "tests/grade/test_grade.py::TestOne::test_points": 0.7,
        "tests/grade/test_grade.py::test_nothing": 0.01,
    }


def test_a_report_renews_what_it_measured_and_keeps_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "COSTS", tmp_path / "costs.json")
    costs.slow_families.cache_clear()
    report = tmp_path / "tests.xml"
    report.write_text(REPORT, encoding="utf-8")
    costs.COSTS.write_text(
        '{"tests/planner/test_fit.py::test_it": 9.0, "tests/test_old.py::test_kept": 5.0}', encoding="utf-8"
    )
    costs.main(str(report))
    assert costs.slow_families() == {"tests/planner/test_fit.py::test_it", "tests/test_old.py::test_kept"}
    costs.slow_families.cache_clear()


def test_every_slow_family_exists():
    for name in costs.slow_families():
        path, *inside = name.split("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        for part in inside:
            tree = next((node for node in tree.body if getattr(node, "name", None) == part), None)
            assert tree is not None, f"{name}: run python -m tests.costs after a whole run, or take it out"
