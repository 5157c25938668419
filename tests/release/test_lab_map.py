"""The map of the labs: every lab is on it, every arrow is a card's, and what follows from others is left out."""

import re
from xml.etree import ElementTree

from helpers.course.build.lab_map import lab_map, needed, rows, without_detours
from helpers.course.build.source import BuildError, Source, sources

import pytest

LABS = sources()


def lab(tmp_path, name, before):
    path = tmp_path / f"{name}.py"
    path.write_text(f'# %% [markdown] name="title"\n# # {name}\n#\n# | Before this | {before} |\n', encoding="utf-8")
    return Source(path)


def test_every_lab_stands_on_the_map_and_leads_to_its_page():
    svg = ElementTree.fromstring(lab_map(LABS, {source.name: f"{source.name} & more" for source in LABS}))
    assert [link.get("href") for link in svg.iter("a")] == [f"{source.name}.html" for source in LABS]


def test_arrows_are_the_needs_of_the_cards_and_lead_down():
    needs = needed(LABS)
    text = lab_map(LABS, {source.name: source.name for source in LABS})
    drawn = set(re.findall(r'data-from="(\w+)" data-to="(\w+)"', text))
    assert drawn == {(before, name) for name, known in without_detours(needs).items() for before in known}
    row_of = {name: row for row, names in enumerate(rows(needs)) for name in names}
    assert all(row_of[before] < row_of[name] for before, name in drawn)


def test_boxes_of_a_row_do_not_overlap():
    text = lab_map(LABS, {source.name: source.name for source in LABS})
    places = [tuple(map(int, found)) for found in re.findall(r'<rect x="(\d+)" y="(\d+)" width="\d+"', text)]
    width = int(re.search(r'<rect [^>]*width="(\d+)"', text)[1])
    for x, y in places:
        assert all(abs(x - other) >= width for other, row in places if row == y and other != x)


def test_detours_and_what_only_helps_are_left_out(tmp_path):
    labs = [
        lab(tmp_path, "00_start", "nothing"),
        lab(tmp_path, "01_first", "[[start]]"),
        lab(tmp_path, "02_second", "labs [[#start]] and [[#first]]"),
        lab(tmp_path, "02_x1_graded", "[[start]]"),
        lab(tmp_path, "03_third", "[[start]]; [[second]] helps"),
    ]
    needs = needed(labs)
    assert needs["02_second"] == {"00_start", "01_first"}
    assert without_detours(needs)["02_second"] == {"01_first"}
    assert needs["02_x1_graded"] == {"00_start", "02_second"}  # an exercise needs its lab
    assert needs["03_third"] == {"00_start"}
    assert rows(needs) == [["00_start"], ["01_first", "03_third"], ["02_second"], ["02_x1_graded"]]


def test_lost_names_and_circles_are_refused(tmp_path):
    with pytest.raises(BuildError, match="a lab that does not exist: 'nowhere'"):
        needed([lab(tmp_path, "00_start", "[[nowhere]]")])
    circle = [lab(tmp_path, "00_start", "[[first]]"), lab(tmp_path, "01_first", "[[start]]")]
    with pytest.raises(BuildError, match="need each other"):
        needed(circle)
