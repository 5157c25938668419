"""What each status means is in the instructor's guide."""

import re

from helpers.core.files import ROOT
from helpers.course.grade.judge.result import Result


def test_the_guide_explains_every_status():
    named = re.search(r"status: one of (.*?);", Result.__doc__)[1].split(", ")
    table = (ROOT / "solutions" / "README.md").read_text(encoding="utf-8").partition("| Status | Meaning |")[2]
    explained = re.findall(r"^\| ([a-z][^|]*) \|", table.partition("\n\n")[0], re.MULTILINE)
    assert sorted(explained) == sorted(named)
