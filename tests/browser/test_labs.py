"""What people meet: every lab opens, every solution runs, every control changes its picture, and X1 can be done.

Running everything takes half an hour, so that is for `make test-all`. `make test` opens a few labs each day, and runs a
solution every third.
"""

import re
from pathlib import Path

import nbformat
import pytest

from ..sampling import sample
from .conftest import ROOT, SCREENSHOTS

ERROR, NOISE = (f'[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in ("error", "stderr"))

LABS, SOLUTIONS = (sorted(path.stem for path in (ROOT / folder).glob("*.ipynb")) for folder in ("labs", "solutions"))
DAYS = range(3 * len(SOLUTIONS))
AT_ONCE = 0.3  # seconds in which a picture should answer, on a quiet machine


def cells_of(path: Path) -> list:
    return nbformat.read(path, 4).cells


def number_of(cells: list, name: str) -> int:
    return next(number for number, cell in enumerate(cells) if cell.id == name)


@pytest.mark.parametrize("name", sorted({LABS[0], *sample(LABS, one_in=14)}))
def test_every_lab_opens_with_all_its_cells_and_pictures(lab, name):
    lab.open(f"labs/{name}.ipynb")
    assert lab.cells.count() == len(cells_of(ROOT / "labs" / f"{name}.ipynb"))
    assert not lab.page.locator(".jp-Dialog").count()
    assert not lab.broken_pictures()


@pytest.mark.parametrize("name", [SOLUTIONS[day // 3] for day in sample(DAYS, one_in=len(DAYS)) if day % 3 == 0])
def test_every_solution_runs_and_every_control_changes_its_picture(lab, name):
    lab.open(f"solutions/{name}.ipynb")
    lab.run_all(seconds=600)
    lab.screenshot(SCREENSHOTS / f"{name}.png")
    assert not lab.shown(ERROR)
    assert not lab.shown(NOISE)
    assert not lab.not_run()
    assert not lab.broken_pictures()
    controls = lab.controls()
    assert bool(controls) == any(
        "explore" in cell.source for cell in cells_of(ROOT / "solutions" / f"{name}.ipynb")[4:]
    )
    for control in controls:
        seconds = lab.move(control)
        assert seconds is not None, f"{control.label}: the picture stayed as it was"
        if seconds > AT_ONCE:
            print(f"{name}, {control.label}: the picture took {seconds:.2f} s")
    assert not lab.shown(ERROR)


def test_the_path_of_a_learner_through_x1(lab):
    """Untouched, then wrong, then right: each time the check says the next thing to know."""
    path = "03b_x1_amp_cnn"
    cells = cells_of(ROOT / "labs" / f"{path}.ipynb")
    right = next(cell.source for cell in cells_of(ROOT / "solutions" / f"{path}.ipynb") if cell.id == "step")
    answer, check = number_of(cells, "step"), number_of(cells, "step_check")
    lab.open(f"labs/{path}.ipynb")
    lab.run(number_of(cells, "setup"))
    lab.run(answer)
    assert "not attempted yet" in lab.run(check)
    wrong = right.replace("        scaler.unscale_(optimizer)", "        pass  # scaler.unscale_(optimizer)")
    assert wrong != right
    lab.run(answer, wrong)
    said = lab.run(check)
    assert re.search("unscale", said)
    assert "5 of 5" not in said
    lab.screenshot(SCREENSHOTS / "x1_wrong.png")
    lab.run(answer, right)
    assert re.search(r"5\s*(of|/)\s*5", lab.run(check))
    lab.screenshot(SCREENSHOTS / "x1_right.png")


def test_a_control_can_be_reached_and_moved_with_the_keyboard_alone(lab):
    name = "02_number_formats"
    cells = cells_of(ROOT / "labs" / f"{name}.ipynb")
    lab.open(f"labs/{name}.ipynb")
    lab.run(number_of(cells, "setup"))
    number = next(
        number for number, cell in enumerate(cells) if cell.cell_type == "code" and "explore_bits(" in cell.source
    )
    lab.run(number)
    field = next(control for control in lab.controls() if control.label == "number")
    field.box.locator("input").focus()
    lab.page.keyboard.press("Tab")
    assert lab.page.evaluate("document.activeElement.tagName") == "SELECT"
    before = lab.pictures(number)
    lab.page.keyboard.press("End")
    assert lab.changes(number, before)
