"""What learners get: the labs and what these need, and nothing that gives answers away in a notebook."""

import re
import subprocess
import sys

from helpers.__main__ import COMMANDS, GROUPS, main
from helpers.core.files import ROOT

LEARNERS = set(list(COMMANDS)[: list(COMMANDS).index(GROUPS["instructors"])])


def test_learners_get_labs_and_helpers_without_solved_notebooks_and_tests(tmp_path, capsys):
    folder = tmp_path / "class"
    assert main(["handout", "--to", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "make lab" in printed
    assert f"rm {folder}/helpers/exercises/reference/x[1-7].py" in printed
    assert "rm FOLDER/helpers/exercises/reference/x[1-7].py" in (ROOT / "solutions" / "README.md").read_text()
    assert (folder / "labs" / "00_start_here.ipynb").exists()
    assert not (folder / "solutions").exists()
    assert not (folder / "tests").exists()
    assert not list(folder.rglob("__pycache__"))
    front = (folder / "README.md").read_text(encoding="utf-8")
    assert "make lab " in front
    assert "## Will it fit?" in front
    for absent in (
        "git clone",
        "make test",
        "teach a course",
        "Grade",
        "grade SUBMISSIONS",
        "hostile",
        "How to work on the course",
    ):
        assert absent not in front
    for page in [*folder.glob("*.md"), *(folder / "docs").glob("*.md")]:
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert not [link for link in links if not (page.parent / link).exists()], page.name
    run = subprocess.run(
        [sys.executable, "-c", "import helpers; print(helpers.__file__)"], cwd=folder, capture_output=True, text=True
    )
    assert run.stdout.strip().startswith(str(folder.resolve()))


def test_what_the_pages_of_a_copy_tell_learners_to_run_is_in_the_copy(tmp_path):
    folder = tmp_path / "class"
    assert main(["handout", "--to", str(folder)]) == 0
    pages = {page: page.read_text(encoding="utf-8") for page in [*folder.glob("*.md"), *(folder / "docs").glob("*.md")]}
    labs = [lab.read_text(encoding="utf-8") for lab in (folder / "labs").glob("*.ipynb")]
    told = {
        target
        for text in [*pages.values(), *labs]
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)
    }
    assert {"lab", "setup", "planner", "install-real"} <= told
    makefile = (folder / "Makefile").read_text(encoding="utf-8")
    rules = set(re.findall(r"^([a-z-]+):(?!=)", makefile, re.MULTILINE))
    assert told <= rules
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    assert phony == rules
    for rule in rules:
        subprocess.run(["make", "--dry-run", rule], cwd=folder, check=True, capture_output=True)
    assert "make test" not in subprocess.run(["make"], cwd=folder, check=True, capture_output=True, text=True).stdout
    for page, text in pages.items():
        assert "end of repository" not in text, page.name
    for page in ("README", "docs/setup", "docs/paths", "docs/labs", "docs/faq"):
        assert "## Grading" not in pages[folder / f"{page}.md"], page


def test_pages_of_a_copy_name_no_command_and_no_file_that_only_the_repository_has(tmp_path):
    folder = tmp_path / "class"
    assert main(["handout", "--to", str(folder)]) == 0
    absent = re.compile(
        r"python3? -m (?:pytest|tests)\b|(?<![\w/])(?:tests|solutions|binder)/\w|python -m helpers ([a-z][\w-]*)"
    )
    found = set()
    pages = [folder / "README.md", *(folder / "docs").glob("*.md"), *(folder / "labs").glob("*.ipynb")]
    for page in pages:  # AGENTS.md forbids files, wherever they are
        read = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        there = LEARNERS if page.suffix == ".md" else set(COMMANDS)  # an exercise shows instructors how to grade it
        found |= {(page.name, hit[0]) for hit in absent.finditer(read) if hit[1] not in there}
    assert found == set()
    options = (folder / "docs" / "options.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (\S+)$", options, re.MULTILINE)) == LEARNERS
    assert options.endswith("<!-- end of options -->\n")


def test_a_folder_that_is_there_is_left_alone(tmp_path, capsys):
    assert main(["handout", "--to", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
