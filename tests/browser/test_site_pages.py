"""The static site on the screen of a phone, from the disk."""

from helpers.course.build.site import make_site
from helpers.course.build.source import sources

import pytest

from .conftest import SCREENSHOTS

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return make_site(tmp_path_factory.mktemp("site"))


def test_pages_are_as_wide_as_a_phone(site, browser):
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    for name in ("index", "claims", *(source.name for source in sources())):
        page.goto(site.with_name(f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
    page.locator("main img").first.click()
    assert page.locator("dialog img").is_visible()  # a figure opens large
    page.locator("dialog").click()
    assert not page.locator("dialog img").is_visible()
    page.goto(site.with_name("01_where_memory_goes.html").as_uri())
    heads = page.locator("thead:has(th:empty):has(th:not(:empty)) th")
    assert heads.count() > 5
    assert all(head.is_visible() for head in heads.all())  # an empty one keeps its column
    page.screenshot(path=SCREENSHOTS / "site_phone.png")
    page.goto(site.as_uri())
    assert not page.locator(".map").is_visible()  # too wide: each lab names what it needs
    assert page.locator("main a").count() > len(sources())
    page.screenshot(path=SCREENSHOTS / "site_index_phone.png")
    context.close()


def test_the_search_finds_a_section_and_leads_to_it(site, browser):
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    page.goto(site.as_uri())
    page.fill("#words", "activation checkpointing dropout")
    first = page.locator("#found a").first
    assert "checkpointing" in first.inner_text()
    first.click()
    page.wait_for_url("**#*")
    page.wait_for_function("window.scrollY > 0")  # a slow machine has the address before it has scrolled there
    page.go_back()
    page.fill("#words", "no lab says this: xyzzy")
    assert page.locator("#found li").count() == 0
    assert page.locator("#none").is_visible()
    context.close()


def test_claims_can_be_filtered(site, browser):
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    page.goto(site.with_name("claims.html").as_uri())
    rows = page.locator("section tbody tr:visible")
    everything = rows.count()
    page.fill("#words", "checkpointing")
    some = rows.count()
    assert 0 < some < everything
    page.select_option("#verdict", "held")
    held = rows.count()
    assert 0 < held < some
    assert all("✓" in text and "✗" not in text for text in rows.all_inner_texts())
    page.screenshot(path=SCREENSHOTS / "claims_phone.png")
    page.fill("#words", "no claim says this: xyzzy")
    assert rows.count() == 0
    context.close()
