"""Counts that the docs state in words of their own: each is what the project holds today."""

import json
import re

from helpers.core.files import ROOT
from helpers.course.build.routes import WEEKS
from helpers.course.build.source import sources
from helpers.virtual_gpu.absent import models

import pytest

from ..virtual_gpu import against_gpu, test_exported_scripts, test_random_programs

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def graded() -> int:
    return sum(source.graded for source in sources())


def models_of_the_hub() -> int:
    return len(json.loads((ROOT / "helpers/planner/catalog/hub.json").read_text(encoding="utf-8")))


def models_of_dry_runs_alone() -> int:
    hub = json.loads((ROOT / "helpers/planner/catalog/hub.json").read_text(encoding="utf-8"))
    return len(set(models._KNOWN) - set(hub))


def programs_on_a_gpu() -> int:
    return len(against_gpu.measured()["rows"])


def random_programs() -> int:
    return len({seed for part in test_random_programs.PARTS for seed in part})


# (page, the words around the count, what counts it)
COUNTS = [
    ("README.md", r"compared with (\w+) runs on an H100", programs_on_a_gpu),
    ("CHANGELOG.md", r"and (\w+) programs beside their dry runs", programs_on_a_gpu),
    ("CHANGELOG.md", r"`plan` knows (\w+) more models", models_of_the_hub),
    ("docs/dry_run.md", r"Tests compare (\w+) small random programs", random_programs),
    ("docs/dry_run.md", r"the planner's catalog and (\w+) other models", models_of_dry_runs_alone),
    ("docs/dry_run.md", r"the dry runs of (\w+) exported scripts", lambda: len(test_exported_scripts.RECIPES)),
    ("docs/paths.md", r"and a (\w+)-week syllabus", lambda: len(WEEKS)),
    ("docs/paths.md", r"## (\w+) weeks", lambda: len(WEEKS)),
    ("solutions/README.md", r"how to grade the (\w+) exercises", graded),
    ("AGENTS.md", r"files with `_x1_` to `_x(\w+)_` in their names", graded),
]


@pytest.mark.parametrize(("page", "words", "count"), COUNTS, ids=[f"{page} {words[:30]}" for page, words, _ in COUNTS])
def test_a_count_in_the_docs_is_what_there_is(page, words, count):
    text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
    found = re.search(words, text)
    assert found, f"{page} no longer says {words}: change this test with it"
    said = found[1].lower()
    assert (WORDS.index(said) if said in WORDS else int(said)) == count()


def test_the_labs_that_ran_on_a_gpu_are_those_of_its_receipt():
    receipt = json.loads((ROOT / "receipts/nvidia-h100-80gb-hbm3.json").read_text(encoding="utf-8"))
    ran = {name.removeprefix("labs/") for name, step in receipt["steps"].items() if step["status"] == "done"}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, last = re.search(r"plans and labs (\d\d) to (\d\d) also on an NVIDIA H100", text).groups()
    said = {source.topic for source in sources() if not source.graded and first <= source.number <= last}
    assert said == ran & {source.topic for source in sources()}
