"""README and docs: short, linked to what exists, their tables up to date."""

import ast
import re
from pathlib import Path

from helpers.core.files import PACKAGE, ROOT
from helpers.course.build.front_page import README, pages
from helpers.course.build.import_graph import imported_rooms, room_picture, room_table
from helpers.course.build.picture import POINTS, held_over_time
from helpers.course.build.source import sources
from helpers.meter.categories import CATEGORIES
from helpers.meter.count import Block
from helpers.meter.operation import NO_OP

import pytest
import yaml

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "solutions" / "README.md"])


def test_the_front_page_fits_on_a_screen_or_two():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 131
    read = re.sub(r"\]\([^)]*\)|<!--.*?-->", "", text)  # without the addresses of links, which nobody reads
    assert len(read) <= 7_950


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_tables_are_what_the_build_writes():
    stale = [page.name for page, text in pages().items() if page.read_text(encoding="utf-8") != text]
    assert not stale, "run: python -m helpers build"


def test_every_place_for_a_table_is_filled():
    for page in PAGES:
        assert not re.search(r"<!-- (\w+): [^>]*-->\n<!-- ", page.read_text(encoding="utf-8")), page.name


def test_every_lab_is_on_the_front_page():
    text = README.read_text(encoding="utf-8").partition("## Labs")[2]  # routes, further up, name some of them again
    assert [f"labs/{source.name}.ipynb" for source in sources()] == re.findall(r"\]\((labs/[^)]+)\)", text)


def test_the_front_page_shows_no_figure_of_a_claim():
    """A measured claim is what a lab asks its reader to predict."""
    assert not re.search(r"^\| C\d+ ", README.read_text(encoding="utf-8"), flags=re.MULTILINE)


# -- the picture of the rooms


def test_an_arrow_is_an_import_and_what_follows_is_left_out(tmp_path):
    package = tmp_path / "house"
    for path, text in {
        "__init__.py": "",
        "attic/__init__.py": '"""Trunks. No people."""',
        "attic/trunk.py": "from ..cellar.wine import bottle\nfrom ..stairs import step\nfrom .dust import dust\n",
        "stairs/__init__.py": "",
        "stairs/deep/__init__.py": "",
        "stairs/deep/foot.py": "def f():\n    from ...cellar import wine\n",
        "cellar/__init__.py": "",
    }.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
    assert imported_rooms(package) == {"attic": {"cellar", "stairs"}, "cellar": set(), "stairs": {"cellar"}}
    assert re.findall(r"(\w+) --> (\w+)", room_picture(package)) == [("attic", "stairs"), ("stairs", "cellar")]
    assert "| `house/attic` | Trunks. No people. |" in room_table(package)


def test_each_room_is_described():
    rows = dict(re.findall(r"^\| `([\w/]+)` \| (.*) \|$", room_table(PACKAGE), flags=re.MULTILINE))
    topics = {path.stem for path in (PACKAGE / "exercises" / "reference").glob("*.py")}
    folders = [path.parent.relative_to(ROOT) for path in PACKAGE.rglob("__init__.py")]
    assert set(rows) == {folder.as_posix() for folder in folders if not topics & set(folder.parts)} - {PACKAGE.name}
    assert all(rows.values())


def test_what_the_page_says_is_found_somewhere_is_there():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## Where do I find") : text.index("## How a byte")]
    named = re.findall(r"`([\w./]+/[\w./]*)`(?:: `(\w+)`)?", table)
    assert len(named) > 10
    for path, name in named:
        assert (ROOT / path).exists(), path
        assert not name or re.search(rf"\b(def|class) {name}\b", (ROOT / path).read_text(encoding="utf-8")), (
            path,
            name,
        )


# -- the small print


def test_version_is_the_same_everywhere():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_licence_names_both_licences():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "MIT License" in text
    assert "creativecommons.org/licenses/by/4.0" in text


def test_documentation_of_helpers_names_no_lab_by_number():
    """Numbers stand in file names only, so that a lab can come between two others."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if re.search(r"\b[Ll]abs? \d\d\b", text):
                found.append(f"{path.relative_to(ROOT)}: {text[:60]!r}")
    assert not found


def test_the_picture_adds_up_and_loses_no_peak():
    blocks = [
        Block(1, 100, "parameters", 1, NO_OP),
        Block(2, 50, "activations", 5, NO_OP, end=8),
        Block(3, 7, "temporaries", 6, NO_OP, end=7),
    ]
    held = held_over_time(blocks)
    assert held.shape[0] == len(CATEGORIES)
    assert held.shape[1] <= POINTS
    assert held.sum(axis=0).max() == 157
    assert held[CATEGORIES.index("parameters"), -1] == 100
    assert held[CATEGORIES.index("activations"), -1] == 0


def test_no_page_has_marks_of_a_merge():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "solutions").glob("*.md")]
    assert len(pages) > 8
    marked = [page.name for page in pages if re.search(r"^(<{7} |>{7} |={7}$)", page.read_text("utf-8"), re.MULTILINE)]
    assert not marked
