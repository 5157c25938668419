"""A notebook opened alone, in an empty folder, where only the package is installed: so it is on Colab."""

import shutil
import subprocess
import sys
from pathlib import Path

from helpers.course.build.notebooks import make_notebook
from helpers.course.build.run_notebook import run_notebook
from helpers.course.build.source import sources

import pytest
from nbformat.v4 import new_code_cell

ROOT = Path(__file__).parents[2]
NAMED = {source.name: source for source in sources()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that holds the installed package, made of a wheel, as pip makes it from the repository."""
    pytest.importorskip("setuptools", reason="needs setuptools to build the package without a network")
    scratch = tmp_path_factory.mktemp("package")
    tree = scratch / "tree"
    shutil.copytree(ROOT / "helpers", tree / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tree)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, tree], check=True)
    (wheel,) = scratch.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", scratch / "site", wheel], check=True)
    return scratch / "site"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["00_start_here", "02_number_formats", "04_x2_batch_256"])
def test_it_runs_in_an_empty_folder(installed, tmp_path, name):
    notebook = make_notebook(NAMED[name], solved=True)
    notebook.cells.append(new_code_cell("import helpers\nprint(helpers.__file__)"))
    run_notebook(notebook, tmp_path, {"PYTHONPATH": str(installed)}, timeout=300)
    assert Path(notebook.cells[-1].outputs[0].text.strip()).is_relative_to(installed)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]


@pytest.mark.slow
def test_what_the_package_carries_is_all_that_helpers_read(installed):
    """Tables, texts and pages that are no Python must be named in pyproject.toml, or a wheel leaves them out."""
    ours = {path.relative_to(ROOT / "helpers") for path in (ROOT / "helpers").rglob("*") if path.is_file()}
    theirs = {path.relative_to(installed / "helpers") for path in (installed / "helpers").rglob("*") if path.is_file()}
    missing = {str(path) for path in ours - theirs if "__pycache__" not in path.parts}
    assert not missing


def test_the_first_cell_installs_the_course_where_it_is_missing(monkeypatch):
    """The cell asks for nothing where helpers are there, and for the repository's package where they are not."""
    from IPython.core.interactiveshell import InteractiveShell

    for source in sources():
        cells = make_notebook(source, solved=False).cells
        first = next(cell for cell in cells if cell.cell_type == "code")
        assert first.id == "install"
    asked = []
    shell = InteractiveShell()
    shell.register_magic_function(asked.append, magic_name="pip")
    assert shell.run_cell(first.source).success
    assert not asked
    hidden = first.source.replace('"helpers"', '"a_package_that_nobody_has"')
    assert shell.run_cell(hidden).success
    assert len(asked) == 1
    assert "git+https://github.com/" in asked[0]
    assert "torch" not in asked[0]
