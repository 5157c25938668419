"""Write what a platform needs to grade one exercise: a ZIP file for Gradescope, a workflow for GitHub Classroom."""

import zipfile
from pathlib import Path

import jinja2

from ....core.files import ROOT, atomic_write
from ....exercises.checking import find_part
from ...build.notebooks import repository
from ..intake.exercise_notebook import checks_of, title_of
from ..options import GradeError
from .single import exercise_source

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, "."),
    variable_start_string="<<",
    variable_end_string=">>",
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    autoescape=False,  # shell and YAML; what stands in them is ours
)
_COURSE = ("helpers/**/*", "solutions/*.py", "pyproject.toml", "README.md", "LICENSE", "requirements.txt")


def gradescope_zip(exercise: str, seed: int, out: Path) -> Path:
    """Write `out`/EXERCISE_gradescope.zip: Settings, Configure Autograder, Zip file upload.

    It holds the course itself, so nothing but packages is downloaded.

    Raises:
        GradeError: there is no such exercise.
    """
    exercise_source(exercise)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{exercise}_gradescope.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("setup.sh", "run_autograder"):
            text = _TEMPLATES.get_template(f"{name}.jinja").render(exercise=exercise, seed=seed)
            member = zipfile.ZipInfo(name)
            member.external_attr = 0o755 << 16
            archive.writestr(member, text, zipfile.ZIP_DEFLATED)
        for pattern in _COURSE:
            for file in sorted(ROOT.glob(pattern)):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, f"course/{file.relative_to(ROOT).as_posix()}")
    return path


def github_workflow(exercise: str, seed: int, out: Path) -> Path:
    """Write `out`/.github/workflows/classroom.yml, for the template repository of the assignment.

    Raises:
        GradeError: there is no such exercise, or `out` has the workflow of another.
    """
    source = exercise_source(exercise)
    path = out / ".github" / "workflows" / "classroom.yml"
    if path.exists() and f"--exercise {exercise} " not in path.read_text(encoding="utf-8"):
        raise GradeError(
            f"{path} does not grade {exercise}. Give another --out: each exercise needs its own repository."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    checks = [check for part in checks_of(source).values() for check in find_part(part).checks]
    text = _TEMPLATES.get_template("classroom.yml.jinja").render(
        exercise=exercise,
        seed=seed,
        title=title_of(source).lstrip("# "),
        checks=[(check.name(), check.points) for check in checks],
        repository=repository().removeprefix("https://github.com/"),
    )
    atomic_write(path, text)
    return path
