"""The static site: a page a lab, figures with words, links and anchors that lead somewhere, nothing from a network."""

import json
import re
from html import unescape
from urllib.parse import unquote

from helpers.claims.receipt import receipts
from helpers.course.build.site import make_site
from helpers.course.build.source import sources
from helpers.course.receipts import claim_results
from helpers.course.receipts.quoted_claims import QUOTED_CLAIMS

import pytest

NAMES = [source.name for source in sources()]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    index = make_site(tmp_path_factory.mktemp("site"))
    return {path.name: path.read_text(encoding="utf-8") for path in index.parent.iterdir()}


@pytest.mark.slow
def test_every_lab_has_a_page_and_stands_in_the_index(site):
    assert set(site) == {"index.html", "claims.html", *(f"{name}.html" for name in NAMES)}
    for name in NAMES:
        assert f'href="{name}.html"' in site["index.html"]
        assert 'name="viewport"' in site[f"{name}.html"]
        assert '<details class="code"><summary>code</summary>' in site[f"{name}.html"]  # set-up
        assert "git+https" not in site[f"{name}.html"]


@pytest.mark.slow
def test_links_lead_to_pages_and_anchors_that_exist(site):
    anchors = {page: {unescape(a) for a in re.findall(r'id="([^"]+)"', text)} for page, text in site.items()}
    listed = re.search(r"const sections = (.*);\n", site["index.html"])[1]
    found = [section["to"] for section in json.loads(listed)]
    assert len(found) > 200
    lost = [link for link in found if "#" in link and link.split("#")[1] not in anchors[link.split("#")[0]]]
    assert not lost
    for page, text in site.items():
        for link in re.findall(r'href="([^"#:]+)(?:#[^"]*)?"', text):
            assert unquote(link) in site or link.startswith("http"), f"{page}: {link}"


@pytest.mark.slow
def test_pictures_are_in_the_page_and_have_words(site):
    count = 0
    for page, text in site.items():
        shown = re.sub(r"<dialog.*?</dialog>", "", text, flags=re.DOTALL)  # whose picture a click fills in
        for tag in re.findall(r"<img[^>]*>", shown):
            source, words = (re.search(rf'{name}="([^"]*)"', tag, flags=re.DOTALL) for name in ("src", "alt"))
            assert source[1].startswith("data:image/png"), page
            assert words is not None, page
            assert len(words[1]) > 20, page
            count += 1
    assert count > 40


@pytest.mark.slow
def test_a_page_asks_the_network_for_nothing(site):
    for page, text in site.items():
        assert not re.search(r'<(script|link|iframe)[^>]+(src|href)="https?:', text), page
        assert "@import" not in text, page


@pytest.mark.slow
def test_the_page_of_claims_has_a_row_for_each_measurement(site):
    count = sum(len(results.measurements) for results in claim_results(receipts()))
    assert count > 100
    assert site["claims.html"].count("<tr data-verdict=") == count
    assert "Not measured yet" in site["claims.html"]
    for claim in QUOTED_CLAIMS:
        assert f'id="{claim}"' in site["claims.html"]
