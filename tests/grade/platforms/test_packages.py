"""Autograder packages, run as their platform would run them: unpacked, set up, started, their answer read."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict

from helpers.__main__ import main
from helpers.course.grade.platforms import github, gradescope, single

import pytest

from ..results import TOO_LARGE, X1, hand_in, missing, result

yaml = pytest.importorskip("yaml")

# A Python that has everything installed: what would be downloaded is written down instead.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip"*) echo "$*" >> "$LOG" ;;
  *) exec {python} "$@" ;;
esac
"""
TOOL = '#!/bin/sh\necho "$(basename "$0") $*" >> "$LOG"\n'


@pytest.fixture
def platform(tmp_path, monkeypatch):
    """A folder of programs that stand in for the platform's, first on PATH; what they were asked is in LOG."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("apt-get", "sudo"):
        (programs / name).write_text(TOOL)
    (programs / "python").write_text(PYTHON.format(python=sys.executable))
    for path in programs.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return programs


def run(command, folder, **environment):
    done = subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Gradescope runs Linux")
def test_gradescope_sets_up_grades_and_reads_the_results(tmp_path, platform, capsys):
    package = tmp_path / "package"
    assert main(["autograder", "gradescope", "--exercise", "x1", "--seed", "3", "--out", str(package)]) == 0
    assert "x1_gradescope.zip grades x1 with seed 3." in capsys.readouterr().out
    root = tmp_path / "autograder"
    (root / "submission").mkdir(parents=True)
    with zipfile.ZipFile(package / "x1_gradescope.zip") as archive:
        archive.extractall(root / "source")
    (root / "source" / "run_autograder").chmod(0o755)  # as Gradescope does; Python's unpacking forgets it
    where = {"AUTOGRADER_ROOT": str(root), "AUTOGRADER_PYTHON": "python"}
    assert run("source/run_autograder", root, **where)[0] == 0  # the build of the image has failed
    assert "was not built" in json.loads((root / "results" / "results.json").read_text(encoding="utf-8"))["output"]
    code, said = run("bash setup.sh", root / "source", **where)
    assert code == 0, said
    asked = (tmp_path / "log").read_text()
    assert "bubblewrap" in asked
    assert f"-e {root}/source/course[lab,teach]" in asked
    hand_in(tmp_path, "ada")
    shutil.copytree(tmp_path / "class" / "ada", root / "submission", dirs_exist_ok=True)
    code, said = run("source/run_autograder", root, **where)
    assert code == 0, said
    found = json.loads((root / "results" / "results.json").read_text(encoding="utf-8"))
    assert sum(test["score"] for test in found["tests"]) == 10
    assert {test["status"] for test in found["tests"]} == {"passed"}
    assert found["output"] == "graded: All checks passed."


def test_gradescope_is_told_what_was_missed_and_who_else_looks():
    found = gradescope.results_json(result(missed={"scale_grows": TOO_LARGE}, flags=["replaced torch.norm"]))
    tests = {test["name"].partition(":")[0]: test for test in found["tests"]}
    assert (tests["scale_grows"]["score"], tests["scale_grows"]["max_score"]) == (0, 1)
    assert tests["scale_grows"]["output"].startswith(TOO_LARGE)
    assert tests["Flags"]["visibility"] == "hidden"
    assert "visibility" not in tests["scale_grows"]
    assert all(test["score"] == 0 for test in gradescope.results_json(missing())["tests"])


def test_a_fault_of_the_grader_is_said_and_costs_nobody_a_crash(tmp_path):
    (tmp_path / "submission").mkdir()
    assert gradescope.main(["--root", str(tmp_path), "--exercise", "x9", "--seed", "1"]) == 0
    found = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    assert "tell your instructor. There is no exercise 'x9'" in found["output"]


def test_an_empty_submission_has_a_result(tmp_path):
    (tmp_path / "submission").mkdir()
    got = single.grade_single(tmp_path / "submission", "x1", 1, 60)
    assert (got.status, got.total, got.maximum) == ("missing", 0, 10)


def classroom(workflow, root):
    """Run the job of a workflow as GitHub would; return the points that its report would show, by step."""
    job = workflow["jobs"]["grade"]
    environment = {name: value.replace("${{ github.workspace }}", str(root)) for name, value in job["env"].items()}
    points = {}
    for step in job["steps"]:
        if "run" in step:
            code, said = run(step["run"], root, **environment)
            assert code == 0, said
        elif "command-grader" in step.get("uses", ""):
            code, said = run(step["with"]["command"], root, **environment)
            points[step["id"]] = step["with"]["max-score"] if code == 0 else 0
        elif "grading-reporter" in step.get("uses", ""):
            assert step["with"]["runners"].split(",") == list(points)
            results = {f"{name.upper()}_RESULTS": f"${{{{ steps.{name}.outputs.result }}}}" for name in points}
            assert step["env"] == results
    return points


@pytest.mark.slow
def test_github_classroom_gives_each_check_its_points(tmp_path, platform, monkeypatch):
    """The step that grades is looked at for its words alone; the result that it would keep is put there."""
    assert main(["autograder", "github", "--exercise", "x1", "--seed", "3", "--out", str(tmp_path / "template")]) == 0
    path = tmp_path / "template" / ".github" / "workflows" / "classroom.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    root = tmp_path / "workspace"
    (root / "hand_in").mkdir(parents=True)
    (root / "course").symlink_to(single.exercise_source("x1").path.parents[1], target_is_directory=True)
    steps = workflow["jobs"]["grade"]["steps"]
    (grade,) = [step for step in steps if step.get("name") == "Grade"]
    words = shlex.split(grade["run"].splitlines()[1])
    assert words[2] == "helpers.course.grade.platforms.github"
    monkeypatch.setattr(github, "grade_single", lambda *args: result(missed={"scale_grows": TOO_LARGE}))
    arguments = [str(root / "result.json") if word == "$KEPT" else word for word in words[3:]]
    assert github.main(arguments) == 0
    grade["run"] = "true"
    for step in steps:  # ten processes that import PyTorch would take a minute
        if "command-grader" in step.get("uses", "") and step["id"] not in ("scale_grows", "loss_in_fp32"):
            check = re.search(r"--check (\w+)$", step["with"]["command"])[1]
            step["with"]["command"] = f"exit {github.main(['--kept', str(root / 'result.json'), '--check', check])}"
    points = classroom(workflow, root)
    assert points == {v.check: v.points for v in result(missed={"scale_grows": TOO_LARGE}).verdicts}
    assert json.loads((root / "result.json").read_text()) == asdict(result(missed={"scale_grows": TOO_LARGE}))


def test_several_exercises_have_a_workflow_each_and_none_replaces_another(tmp_path, capsys):
    words = ["autograder", "github", "--seed", "3", "--out", str(tmp_path / "both"), "--exercise"]
    assert main([*words, "x1", "X2"]) == 0
    assert "grades x1 with seed 3." in capsys.readouterr().out
    for name in ("x1", "x2"):
        path = tmp_path / "both" / name / ".github" / "workflows" / "classroom.yml"
        assert f"--exercise {name} --seed 3" in path.read_text(encoding="utf-8")
    words[words.index("--out") + 1] = str(tmp_path / "one")
    assert main([*words, "x1"]) == main([*words, "x1"]) == 0
    before = (tmp_path / "one" / ".github" / "workflows" / "classroom.yml").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main([*words, "x2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not grade x2" in line
    assert (tmp_path / "one" / ".github" / "workflows" / "classroom.yml").read_text(encoding="utf-8") == before


def test_an_exercise_that_is_not_there_is_one_line(tmp_path, capsys):
    assert main(["autograder", "github", "--exercise", "x9", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "There is no exercise 'x9'. The exercises are x1, x2, x3, x7, x5, x6, x4.\n"


def test_the_source_is_found():
    assert single.exercise_source("x1") == X1
