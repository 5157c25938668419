"""What a change can break is tested, and not much else."""

import pytest

from . import changed
from .changed import changed_topics, chosen


@pytest.fixture(scope="module")
def parsed():
    return changed.Modules(changed.ROOT)  # takes ten seconds, so once


@pytest.fixture(autouse=True)
def modules(parsed, monkeypatch):
    monkeypatch.setattr(changed, "Modules", lambda root: parsed)
    monkeypatch.setenv("SAMPLE_SEED", "0")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("helpers/core/units.py", "tests/core/test_units.py"),
        ("helpers/meter/recorder.py", "tests/meter/test_recorder.py"),  # by a name that helpers exports
        ("helpers/course/grade/report/policy.py", "tests/grade/report/test_policy.py"),
        ("helpers/planner/options.py", "tests/planner/test_layout_command.py"),  # by a command
        ("helpers/widgets/bit_explorer.py", "solutions/02_number_formats.ipynb"),
        ("helpers/exercises/x1/scaler.py", "tests/labs/test_graded.py"),
        ("tests/grade/results.py", "tests/grade/report/test_pages.py"),
        ("solutions/02_number_formats.py", "solutions/02_number_formats.ipynb"),
        ("docs/setup.md", "tests/release/test_docs.py"),
    ],
)
def test_a_change_brings_the_tests_that_it_can_break(parsed, path, expected):
    files = chosen([path])
    assert expected in files
    assert len(files) < len(parsed.test_files())


def test_a_change_of_the_set_up_brings_everything_and_none_brings_nothing():
    assert chosen(["requirements.txt", "docs/setup.md"]) == ["tests"]
    assert chosen([]) == []


def test_what_nothing_imports_brings_nothing_of_others():
    assert "tests/meter/test_recorder.py" not in chosen(["helpers/course/grade/report/policy.py"])
    assert "tests/planner/test_arithmetic.py" not in chosen(["helpers/exercises/x1/scaler.py"])


def test_all_answers_of_a_changed_topic_are_tried():
    paths = [
        "helpers/exercises/x1/scaler.py",
        "helpers/exercises/reference/lora.py",
        "tests/answers/wrong/fp8/mx.diff",
    ]
    assert changed_topics([*paths, "helpers/core/units.py"]) == ["fp8", "lora", "x1"]


def test_an_unknown_commit_is_one_line(capsys):
    with pytest.raises(SystemExit) as error:
        changed.changed_files("no-such-commit")
    assert error.value.code == 2
    assert capsys.readouterr().out.count("\n") == 1
