"""The build: deterministic, answers removed, nbgrader's metadata, stale notebooks found."""

import re
import tomllib

from helpers.core.files import ROOT
from helpers.course.build import build as builder
from helpers.course.build import source as source_files
from helpers.course.build.build import problems, solution_problem
from helpers.course.build.collapse import collapsed
from helpers.course.build.execution import execute
from helpers.course.build.front_page import DOCS, README, card, pages
from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import BuildError, Source, checked_part, sources
from helpers.course.build.stubs import PLACEHOLDER, clear_solution

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

SOURCES = sources()
IDS = [source.name for source in SOURCES]

EXAMPLE = """# %% [markdown] name="title"
# # Example
#
# A claim.

# %% name="setup" setup=true
import math

scale = 2

# %% name="guess"
my_guess = None
### BEGIN GUESS
my_guess = 3
### END GUESS


# %% name="double" answer=true reveal=true
def double(x):
    ### BEGIN SOLUTION
    return scale * x
    ### END SOLUTION


# %% name="double_check" points=2
check("x9.double", double)

# %%
print(math.pi)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "42_example.py"
    path.write_text(EXAMPLE, encoding="utf-8")
    return Source(path)


def cells(source, solved):
    return {cell.id: cell for cell in make_notebook(source, solved).cells}


def test_notebooks_in_the_repository_match_their_sources():
    assert problems([]) == []


@pytest.mark.parametrize("source", SOURCES, ids=IDS)
def test_building_twice_gives_the_same_bytes(source):
    first = write(make_notebook(source, solved=False))
    source_files._cells_of.cache_clear()  # so that it is read anew: jupytext gives cells other ids each time
    assert write(make_notebook(source, solved=False)) == first


@pytest.mark.parametrize("source", SOURCES, ids=IDS)
def test_learners_see_no_solution_and_no_output(source):
    text = (ROOT / "labs" / f"{source.name}.ipynb").read_text(encoding="utf-8")
    assert "### BEGIN" not in text
    for cell in nbformat.reads(text, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("source", SOURCES, ids=IDS)
def test_the_stub_is_contained_in_the_solution(source):
    learner, solved = cells(source, False), cells(source, True)
    for name, cell in learner.items():
        if cell.metadata.get("nbgrader", {}).get("solution"):
            rest = iter(solved[name].source.splitlines())
            given = [line for line in cell.source.splitlines() if line.strip() not in PLACEHOLDER.splitlines()]
            assert all(line in rest for line in given), (
                f"{name}: the stub has lines that the solution has not, in order"
            )
            assert "raise NotImplementedError" in cell.source


@pytest.mark.parametrize("source", SOURCES, ids=IDS)
def test_notebooks_are_valid_and_have_a_kernel(source):
    for solved in (False, True):
        notebook = make_notebook(source, solved)
        nbformat.validate(notebook)
        assert notebook.metadata.kernelspec.name == "python3"
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell.id) for cell in notebook.cells)


def test_packages_are_installed_before_the_first_set_up_cell_alone(source):
    text = EXAMPLE.replace('# %% name="guess"', '# %% name="setup_more" setup=true\nimport cmath\n\n# %% name="guess"')
    source.path.write_text(text, encoding="utf-8")
    ids = [cell.id for cell in make_notebook(source, solved=False).cells]
    assert ids[1:4] == ["install", "setup", "setup_more"]
    assert ids.count("install") == 1


def test_nbgrader_metadata_is_schema_three_and_complete(source):
    made = cells(source, solved=False)
    answer, check = made["double"].metadata.nbgrader, made["double_check"].metadata.nbgrader
    assert answer == {
        "grade": False, "grade_id": "double", "locked": False, "schema_version": 3, "solution": True, "task": False
    }  # fmt: skip
    assert check == {
        "grade": True, "grade_id": "double_check", "locked": True, "points": 2, "schema_version": 3,
        "solution": False, "task": False,
    }  # fmt: skip
    assert "nbgrader" not in made["setup"].metadata
    assert made["setup"].metadata.jupyter == {"source_hidden": True}


DRAWING = """from matplotlib.figure import Figure

figure = Figure()
axes = figure.add_subplot()
axes.plot(peaks)
show(figure, "The peak doubles from 10 to 20 MiB.")
"""


@pytest.mark.parametrize(
    ("code", "metadata", "wanted"),
    [
        (DRAWING, {}, True),  # its alt text is the answer
        ("peaks = [measure(n) for n in range(9)]\n" + DRAWING, {}, True),
        ("for n in range(9):\n" + "    peaks.append(measure(n))\n" * 9 + DRAWING, {}, False),  # a measurement is shown
        (DRAWING, {"answer": True}, False),
        (DRAWING + "my_guess = None\n", {}, False),
        ("print(1)", {}, False),
        ("import torch", {"setup": True}, True),
        ("%pip install it\n" + DRAWING, {}, False),
    ],
)
def test_what_only_draws_is_collapsed(code, metadata, wanted):
    assert collapsed(new_code_cell(code, metadata=metadata)) is wanted


def test_a_notebook_ends_with_what_comes_next():
    order = sources()
    last = [make_notebook(order[i], solved).cells[-1].source for i in (0, -1) for solved in (True, False)]
    assert last[0] == last[1] == "**Next:** [01 · Where memory goes](01_where_memory_goes.ipynb)"
    assert last[2] == last[3] == "**Next:** you have reached the end of the course."


def test_answers_are_stubbed_and_guesses_emptied(source):
    made = cells(source, solved=False)
    assert made["double"].source == "def double(x):\n    # YOUR CODE HERE\n    raise NotImplementedError()"
    assert made["guess"].source == "my_guess = None"


def test_solution_of_a_practice_task_hides_behind_details(source):
    text = cells(source, solved=False)["double_solution"].source
    assert text.startswith("<details>")
    assert "return scale * x" in text
    assert "SOLUTION" not in text
    assert "double_solution" not in cells(source, solved=True)


def test_the_solution_comes_after_the_check_and_its_hints(source):
    check = 'check("x9.double", double)\n'
    text = EXAMPLE.replace(check, f'double = {check}\n# %% name="double_hint"\nhint("x9.double")\n')
    source.path.write_text(text, encoding="utf-8")
    order = [cell.id for cell in make_notebook(source, solved=False).cells]
    begin = order.index("double")
    assert order[begin : begin + 4] == ["double", "double_check", "double_hint", "double_solution"]


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ('check("x9.double", double)', "x9.double"),
        ('double = check("x9.double", double)', "x9.double"),
        ('one, two = check("lab.both", one, two)', "lab.both"),
        ('one, two = check(\n    "lab.both", one, two\n)', "lab.both"),
        ('def wrong():\n    pass\n\n\ncheck("lab.fails_on_purpose", wrong)', None),
        ("recheck(1)", None),
    ],
)
def test_a_check_is_known_by_how_its_cell_begins(code, part):
    assert checked_part(code) == part


def test_reference_module_runs_and_holds_the_answers(source):
    names = {}
    exec(source.reference(), names)
    assert names["double"](4) == 8
    assert "check(" not in source.reference()


def test_badge_points_to_the_learners_notebook(source):
    badge = cells(source, solved=True)["title"].source.splitlines()[2]
    assert badge.startswith("[![Open In Colab]")
    assert "/blob/main/labs/42_example.ipynb" in badge


def test_a_title_gets_its_number(source):
    assert cells(source, solved=False)["title"].source.startswith("# 42 · Example\n\n[![Open In Colab]")


def test_an_exercise_keeps_its_title(source):
    path = source.path.with_name("42_x9_example.py")
    path.write_text(EXAMPLE, encoding="utf-8")
    assert cells(Source(path), solved=False)["title"].source.startswith("# Example\n")


# -- references to other labs


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of three labs that refer to each other; the folder of their sources."""
    folder = tmp_path / "solutions"
    folder.mkdir()
    text = '# %% [markdown] name="title"\n# # {}\n#\n# {}\n'
    (folder / "01_memory.py").write_text(
        text.format("Memory", "See [[lean_optimizers]] and [[#fp8]]. [[Fp8]] ends it.")
    )
    (folder / "02_lean_optimizers.py").write_text(text.format("Optimizers", "After [[memory]]."))
    (folder / "03_fp8.py").write_text(text.format("FP8", "After [[lean_optimizers]]."))
    monkeypatch.setattr(source_files, "ROOT", tmp_path)
    return folder


def built():
    """Return the text of every lab of the course."""
    return {source.name: make_notebook(source, solved=False).cells[0].source for source in sources()}


def test_references_become_links_with_numbers(course):
    text = built()["01_memory"]
    assert "See [lab 02](02_lean_optimizers.ipynb) and [03](03_fp8.ipynb). [Lab 03](03_fp8.ipynb) ends it." in text


def test_a_reference_to_no_lab_is_named(course):
    (course / "03_fp8.py").unlink()
    with pytest.raises(BuildError, match="01_memory: there is no lab called 'fp8'"):
        built()


def test_a_lab_is_inserted_by_renaming_files(course):
    (course / "03_fp8.py").rename(course / "04_fp8.py")
    (course / "02_lean_optimizers.py").rename(course / "03_lean_optimizers.py")
    (course / "02_new.py").write_text((course / "01_memory.py").read_text().replace("Memory", "New"))
    texts = built()
    assert list(texts) == ["01_memory", "02_new", "03_lean_optimizers", "04_fp8"]
    for name in ("01_memory", "02_new"):
        assert "See [lab 03](03_lean_optimizers.ipynb) and [04](04_fp8.ipynb). [Lab 04]" in texts[name]
    assert texts["04_fp8"].startswith("# 04 · FP8\n")
    assert "After [lab 03](03_lean_optimizers.ipynb)." in texts["04_fp8"]


# -- what is wrong with a source


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name="guess"', 'name="setup"', "two cells are called 'setup'"),
        (
            "    ### BEGIN SOLUTION\n    return scale * x\n    ### END SOLUTION",
            "    return scale * x",
            "marks no solution",
        ),
        ('name="double_check" points=2', "points=2", "has no name"),
        (" answer=true reveal=true", "", "that is not an answer marks a solution"),
        ("# %%\nprint", "# %% [raw]\n# print", "raw cell"),
        (
            "    ### END SOLUTION",
            "### END SOLUTION\nscale = 2",
            "'double': code follows the solution, but",
        ),
    ],
)
def test_malformed_sources_are_named(tmp_path, old, new, complaint):
    assert EXAMPLE.count(old) == 1
    path = tmp_path / "42_example.py"
    path.write_text(EXAMPLE.replace(old, new), encoding="utf-8")
    with pytest.raises(BuildError, match=complaint):
        make_notebook(Source(path), solved=True)


def test_nested_and_repeated_regions_are_cleared():
    source = "class A:\n    def f(self):\n        ### BEGIN SOLUTION\n        return 1\n        ### END SOLUTION\n\n"
    source += "    def g(self):\n        ### BEGIN SOLUTION\n        return 2\n        ### END SOLUTION"
    cell = new_code_cell(source, metadata={"answer": True})
    cleared = clear_solution(cell)
    assert cleared.count("raise NotImplementedError") == 2
    assert "return" not in cleared
    compile(cleared, "cell", "exec")


def executed(source):
    notebook = make_notebook(source, solved=True)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = 1
    return notebook


def last_code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"][-1]


def test_stale_solutions_are_found(source):
    path = source.path.with_suffix(".ipynb")
    assert solution_problem(source) == "is missing"
    notebook = executed(source)
    path.write_text(write(notebook), encoding="utf-8")
    assert solution_problem(source) is None
    source.path.write_text(EXAMPLE.replace("my_guess = 3", "my_guess = 4"), encoding="utf-8")
    assert solution_problem(source) == "is older than its source"


def test_a_solution_whose_text_alone_has_changed_keeps_its_outputs(source):
    path = source.path.with_suffix(".ipynb")
    assert builder._with_kept_outputs(source) is None
    notebook = executed(source)
    last_code(notebook).outputs.append(new_output("stream", text="3.14"))
    path.write_text(write(notebook), encoding="utf-8")
    source.path.write_text(EXAMPLE.replace("A claim.", "Another claim."), encoding="utf-8")
    kept = builder._with_kept_outputs(source)
    assert "Another claim." in kept.cells[0].source
    assert last_code(kept).outputs[0].text == "3.14"
    path.write_text(write(kept), encoding="utf-8")
    assert solution_problem(source) is None
    last_code(kept).outputs[0].name = "stderr"
    path.write_text(write(kept), encoding="utf-8")
    assert builder._with_kept_outputs(source) is None, "a warning would stay forever"
    path.write_text(write(notebook), encoding="utf-8")
    source.path.write_text(EXAMPLE.replace("print(math.pi)", "print(math.pi)  # a comment"), encoding="utf-8")
    assert last_code(builder._with_kept_outputs(source)).source.endswith("# a comment")
    source.path.write_text(EXAMPLE.replace("print(math.pi)", "print(math.e)"), encoding="utf-8")
    assert builder._with_kept_outputs(source) is None


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda cell: cell.update(execution_count=None), "has cells that were not run"),
        (lambda cell: cell.outputs.append(new_output("error")), "shows an error or a warning"),
        (
            lambda cell: cell.outputs.append(new_output("stream", name="stderr")),
            "shows an error or a warning",
        ),
        (lambda cell: cell.outputs.append(new_output("stream", text="x" * 2**20)), "is larger than"),
    ],
)
def test_bad_solutions_are_found(source, spoil, complaint):
    notebook = executed(source)
    spoil(last_code(notebook))
    source.path.with_suffix(".ipynb").write_text(write(notebook), encoding="utf-8")
    assert solution_problem(source).startswith(complaint)


@pytest.mark.parametrize("printed", [True, False])
def test_a_solution_that_fails_its_own_check_is_found(source, printed):
    notebook = executed(source)
    (checking,) = (cell for cell in notebook.cells if cell.id == "double_check")
    text = "x9.double: 0 of 1 checks passed\n  ✗ doubles"
    shown = new_output("stream", text=text) if printed else new_output("display_data", {"text/plain": text})
    checking.outputs.append(shown)
    source.path.with_suffix(".ipynb").write_text(write(notebook), encoding="utf-8")
    assert solution_problem(source) == "fails a check of its own"


def test_stale_learner_notebooks_and_strays_are_found(source, tmp_path, monkeypatch):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "labs").mkdir()
    path = tmp_path / "solutions" / source.path.name
    path.write_text(EXAMPLE, encoding="utf-8")
    (tmp_path / "labs" / "77_stray.ipynb").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(builder, "ROOT", tmp_path)
    monkeypatch.setattr(builder, "REFERENCE", tmp_path / "reference")
    monkeypatch.setattr(builder, "sources", lambda: [Source(path)])
    (tmp_path / "README.md").write_text("a table", encoding="utf-8")
    monkeypatch.setattr(builder, "pages", lambda: {tmp_path / "README.md": "another table"})
    assert problems([]) == [
        "labs/42_example.ipynb does not match its source",
        "reference/example.py does not match its source",
        "solutions/42_example.ipynb is missing",
        "README.md: its tables do not match the labs, the receipts or the rooms",
        "labs/77_stray.ipynb has no source",
    ]


def test_the_list_of_labs_has_time_and_needs():
    text = pages()[DOCS / "labs.md"]
    for source in SOURCES:
        (line,) = [line for line in text.splitlines() if line.startswith("| [") and f"labs/{source.name}.ipynb" in line]
        assert card(source)["Time"] in line
        assert card(source)["Needs"] in line


def test_one_address_of_the_repository():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"]
    for source in SOURCES:
        notebook = write(make_notebook(source, solved=False))
        assert f"git+{address}" in notebook
        assert f"/github/{address.removeprefix('https://github.com/')}/blob/main/labs/{source.name}.ipynb" in notebook
    assert set(re.findall(r"training-at-scale/[\w-]+", README.read_text(encoding="utf-8"))) <= {
        address.removeprefix("https://github.com/")
    }


@pytest.mark.slow
def test_a_cell_that_fails_is_named_in_a_line(source):
    notebook = make_notebook(source, solved=True)
    notebook.cells = [new_code_cell("1 / 0")]
    with pytest.raises(BuildError, match="a cell failed with ZeroDivisionError: division by zero"):
        execute(notebook, source.path.parent)


@pytest.mark.slow
def test_executed_outputs_are_joined_and_cleaned(source):
    notebook = make_notebook(source, solved=True)
    code = "print(object(), flush=True)\nprint('two')\nobject()"
    notebook.cells = [new_code_cell(code)]
    stream, result = execute(notebook, source.path.parent).cells[0].outputs
    assert stream.text == "<object object at 0x0>\ntwo\n"
    assert result.data["text/plain"] == "<object at 0x0>"
