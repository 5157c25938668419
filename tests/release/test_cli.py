"""The command line: one clear line and exit code 2 for bad input, never a traceback."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

from helpers.__main__ import main
from helpers.course.build.source import Source, checked_part

import pytest

from ..sampling import sample

ROOT = Path(__file__).parents[2]


def run(*args):
    return subprocess.run([sys.executable, "-m", "helpers", *map(str, args)], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["graed"], "did you mean grade?"),
        (["grade", "nowhere"], "--out"),
        (["grade", "nowhere", "--out", "x", "--jobs", "many"], "invalid int value"),
        (["plan", "--modl", "gpt2"], "--modl gpt2; did you mean --model? Help: python -m helpers plan --help"),
        (["dry-run", "--batch-size", "4", "x.py"], "the script's own options follow its name. Help: python -m helpers"),
        (["dry-run"], "required: SCRIPT. Help: python -m helpers dry-run --help"),
    ],
)
def test_wrong_words_are_refused(args, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


COMMANDS = ["doctor", "roofline", "plan", "layout", "page", "build", "plans", "searches", "chooser", "grade", "claims"]
COMMANDS += ["progress", "receipts", "gpu", "site", "autograder", "mistakes", "handout", "dry-run", "autopsy"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    for args in (["--help"], [command, "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code == 0
        assert command in capsys.readouterr().out


def test_help_fits_a_terminal_and_says_for_whom_each_command_is(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line.startswith("for ")] == [
        "for learners, and anyone who trains models:",
        "for instructors:",
        "for authors of the course:",
    ]
    assert sum(line.startswith("  ") for line in lines) == len(COMMANDS)


def test_the_console_script_is_this_command_line(monkeypatch, capsys):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert EntryPoint("training-at-scale", scripts["training-at-scale"], "console_scripts").load() is main
    for argv, program in (
        ("/bin/training-at-scale", "training-at-scale"),
        ("helpers/__main__.py", "python -m helpers"),
    ):
        monkeypatch.setattr(sys, "argv", [argv, "graed"])
        with pytest.raises(SystemExit):
            main()
        assert capsys.readouterr().err.endswith(f"Help: {program} --help\n")


def test_no_command_shows_all_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert all(f"\n  {name} " in err for name in COMMANDS)


def test_bad_input_is_one_line(tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    file = tmp_path / "file"
    file.touch()
    student = tmp_path / "class" / "ada"
    student.mkdir(parents=True)
    cases = [
        (["build", "99_nothing"], "No source is called '99_nothing'"),
        (["build", "--check", "99_nothing"], "No source is called"),
        (["grade", str(tmp_path / "nowhere"), "--out", str(tmp_path / "o")], "is not a folder"),
        (["grade", str(file), "--out", str(tmp_path / "o")], "is not a folder"),
        (["grade", str(empty), "--out", str(tmp_path / "o")], "contains no student folders"),
        (["grade", str(student.parent), "--exercise", "x1", "--out", str(file)], "cannot be written"),
        (["grade", str(student.parent), "--out", str(tmp_path / "o"), "--jobs", "0"], "--jobs must be"),
        (["grade", str(student.parent), "--out", str(tmp_path / "o"), "--timeout", "-1"], "--timeout"),
    ]
    for args, words in cases:
        assert main(args) == 2, args
        err = capsys.readouterr().err.strip()
        assert words in err
        assert len(err.splitlines()) == 1


def test_files_that_cannot_be_written_are_named(monkeypatch, capsys):
    from helpers import doctor

    def full():
        raise OSError(28, "No space left on device", "grades/gradebook.csv")

    monkeypatch.setattr(doctor, "examine", full)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "grades/gradebook.csv: No space left on device\n"


def test_a_missing_package_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "helpers.course.grade.grading", None)  # makes its import fail
    assert main(["grade", ".", "--out", "x"]) == 2
    assert "python -m pip install" in capsys.readouterr().err


def test_without_a_checkout_build_and_grade_say_so(tmp_path, monkeypatch, capsys):
    from helpers.course.build import build
    from helpers.course.grade import options

    monkeypatch.setattr(build, "sources", list)
    monkeypatch.setattr(options, "sources", list)
    for args in (["build"], ["build", "--check"], ["grade", str(tmp_path), "--out", str(tmp_path / "o")]):
        assert main(args) == 2
        assert "in a checkout of the course" in capsys.readouterr().err


@pytest.mark.slow
def test_doctor_names_this_machine():
    out = run("doctor")
    assert out.returncode == 0, out.stdout
    for words in ("device", "memory", "computes in", "FP32", "torch", "Everything the labs need is installed."):
        assert words in out.stdout
    assert out.stderr == ""


def test_doctor_says_what_is_missing_and_how_to_get_it(monkeypatch, capsys):
    from helpers import doctor

    monkeypatch.setitem(doctor.PACKAGES, "no-such-package", "nothing")
    assert doctor.examine() == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "python -m pip install no-such-package" in out


@pytest.mark.slow  # `make lint` says it before, and test_build.py without a process of its own
def test_build_check_passes_on_this_tree():
    out = run("build", "--check")
    assert (out.returncode, out.stdout.strip()) == (0, "All notebooks match their sources.")


# nbval runs every cell of every solution anyway; some of the sources show that they need no Jupyter.
SCRIPTS = sample(sorted((ROOT / "solutions").glob("*.py")), one_in=56)


@pytest.mark.slow
@pytest.mark.parametrize("source", SCRIPTS, ids=lambda p: p.stem)
def test_sources_run_as_plain_scripts_without_jupyter(source, tmp_path):
    """As on a GPU machine that has neither Jupyter nor ipywidgets."""
    for name in ("IPython", "ipywidgets", "jupytext", "nbformat"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here', name='{name}')\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    out = subprocess.run([sys.executable, source], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stderr == ""
    assert ("checks passed" in out.stdout) == any(checked_part(cell.source) for cell in Source(source).cells())


def test_a_python_without_the_courses_packages_names_the_one_that_has_them():
    bare = [sys.executable, "-S", "-m", "helpers", "plan", "--list"]  # -S: nothing that pip has installed
    run = subprocess.run(bare, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    assert run.returncode == 2
    assert len(run.stderr.splitlines()) == 1
    assert re.search(r"does not have the course's packages.*\.venv\S+python -m helpers", run.stderr)
