"""A notebook in a real JupyterLab, driven as a reader would: run cells, type, move controls with the keyboard, look."""

import functools
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Locator, Page


class Control(NamedTuple):
    """A slider, drop-down list or field, the cell that it stands in, and its label."""

    cell: int
    label: str
    box: Locator


@dataclass
class LabPage:
    """One open notebook.

    Attributes:
        address: of the server, with the token.
        page: a tab of the browser.
    """

    page: Page
    address: str
    token: str

    def open(self, path: str) -> None:
        """Open a notebook of the server's folder and wait for its kernel."""
        self.page.goto(f"{self.address}/lab/tree/{path}?token={self.token}&reset")
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=90_000)
        self.wait(60)
        self.page.keyboard.press("Control+b")  # the side bar takes room

    @property
    def cells(self) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")

    def wait(self, seconds: float) -> None:
        """Wait until no cell runs, and none has for a moment."""
        idle = self.page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]')
        end, quiet = time.monotonic() + seconds, 0
        while quiet < 4:
            assert time.monotonic() < end, f"still busy after {seconds:.0f} s"
            waiting = self.page.locator(".jp-InputArea-prompt", has_text="[*]").count()
            quiet = quiet + 1 if idle.count() and not waiting else 0
            self.page.wait_for_timeout(250)

    def run_all(self, seconds: float) -> None:
        """Run all cells, from the menu, and wait."""
        for menu, command in (("Edit", "editmenu:clear-all"), ("Run", "runmenu:run-all")):
            self.page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{menu}$")).click()
            self.page.locator(f'.lm-Menu-item[data-command="{command}"]').click()
        self.page.locator(".jp-InputArea-prompt", has_text=re.compile(r"\[[*\d]")).first.wait_for(timeout=30_000)
        self.wait(seconds)

    def run(self, cell: int, source: str | None = None, seconds: float = 120) -> str:
        """Type `source` into a cell if given, run it, and return the text under it."""
        folded = self.cells.nth(cell).locator(".jp-InputPlaceholder, .jp-Cell-inputWrapper .jp-Placeholder")
        if folded.count():
            folded.first.click()
        self.cells.nth(cell).locator(".cm-content").click()
        if source is not None:
            self.page.keyboard.press("Control+a")
            self.page.keyboard.press("Delete")
            self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_timeout(300)
        self.wait(seconds)
        return self.text(cell)

    def text(self, cell: int) -> str:
        """Return what stands under a cell."""
        return "\n".join(self.cells.nth(cell).locator(".jp-OutputArea-output").all_inner_texts())

    def shown(self, kind: str) -> dict[int, str]:
        """Return cell -> text of all outputs of a kind."""
        found = {}
        for number, cell in enumerate(self.cells.all()):
            texts = cell.locator(kind).all_inner_texts()
            if texts:
                found[number] = "\n".join(texts)
        return found

    def not_run(self) -> list[int]:
        """Return the code cells that have no number; one that is folded shows none."""
        prompts = [cell.locator(".jp-InputArea-prompt").all_inner_texts()[:1] for cell in self.cells.all()]
        return [number for number, its in enumerate(prompts) if its and re.fullmatch(r"\[\s*\]:", its[0].strip())]

    def controls(self) -> list[Control]:
        """Return all sliders, lists and fields."""
        found = []
        for number, cell in enumerate(self.cells.all()):
            for box in cell.locator(".widget-hslider, .widget-dropdown, .widget-text").all():
                found.append(Control(number, box.locator(".widget-label").first.inner_text(), box))
        return found

    def pictures(self, cell: int) -> list[str]:
        """Return the pictures and texts that a cell's widgets show."""
        shown = self.cells.nth(cell).locator(".widget-html-content")
        return shown.evaluate_all("boxes => boxes.map(box => box.innerHTML)")

    def move(self, control: Control) -> float | None:
        """Move a control to an end and back, with the keyboard; return the seconds until its picture changed.

        None: it changed at neither end. JupyterLab takes the arrow keys for itself, whatever has the focus. It leaves
        Home and End, which a list knows, and all keys while one types, so a slider gets a number.
        """
        before = self.pictures(control.cell)
        control.box.scroll_into_view_if_needed()
        if control.box.locator("select").count():
            chooser = control.box.locator("select")
            start = chooser.evaluate("list => list.selectedIndex")
            sets = [functools.partial(chooser.press, key) for key in ("End", "Home")]
            back = functools.partial(chooser.select_option, index=start)
        elif control.box.locator(".noUi-handle").count():
            handle, number = control.box.locator(".noUi-handle").first, control.box.locator(".widget-readout")
            least, now, most = (float(handle.get_attribute(f"aria-value{name}")) for name in ("min", "now", "max"))
            sets = [functools.partial(self._type, number, f"{end:.0f}") for end in (most, least) if end != now]
            back = functools.partial(self._type, number, f"{now:.0f}")
        else:
            field = control.box.locator("input")
            sets = [functools.partial(self._type, field, number) for number in ("0.3", "7")]
            back = functools.partial(self._type, field, field.input_value())
        for set_value in sets:
            began = time.monotonic()
            set_value()
            if self.changes(control.cell, before):
                seconds = time.monotonic() - began
                back()
                self.page.wait_for_timeout(300)
                self.wait(60)
                return seconds
        return None

    def changes(self, cell: int, before: list[str]) -> bool:
        """Wait until a cell's widgets show other pictures than before; say whether they ever did."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if self.pictures(cell) != before:
                return True
            self.page.wait_for_timeout(20)
        return False

    def _type(self, field: Locator, text: str) -> None:
        field.focus()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def broken_pictures(self) -> list[str]:
        """Return the sources of pictures of ours that the browser could not show; the badge comes from elsewhere."""
        return self.page.evaluate(
            "[...document.querySelectorAll('.jp-Notebook img')]"
            ".filter(image => image.complete && !image.naturalWidth && !image.src.includes('colab-badge'))"
            ".map(image => image.src)"
        )

    def screenshot(self, path: Path) -> None:
        """Save pictures of the whole notebook: NAME.png, NAME-1.png and so on, of at most 8,000 pixels each."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scroll = "document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer')"
        size, whole = self.page.viewport_size, self.page.evaluate(f"{scroll}.scrollHeight")
        self.page.set_viewport_size({"width": size["width"], "height": min(whole + 150, 8_000)})
        for number, top in enumerate(range(0, whole, 7_800)):
            self.page.evaluate(f"{scroll}.scrollTop = {top}")
            self.page.wait_for_timeout(500)
            self.page.screenshot(path=path.with_stem(f"{path.stem}-{number}" if number else path.stem))
        self.page.set_viewport_size(size)
