"""The layout explorer: controls for model, GPUs and layout; bars of memory, the timeline, and a table to compare.

It is a cell of a notebook; `make planner` serves the planner as a page. Every picture is an image in a widget, as in
`explore`, so no front end needs more than ipywidgets, and a reader without a kernel sees the first answer.
"""

import base64
import html
import io
import os
import time
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from matplotlib.figure import Figure

from ..core.notebook import in_notebook, size_on_page, to_png
from ..core.table import text_table
from ..planner import RecipeError
from ..planner.catalog.clusters import CLUSTERS
from ..planner.layout.layout_plan import LayoutPlan, plan_layout
from ..planner.layout.timeline import draw_timeline, timeline_alt
from ..planner.search.found import Found, found_of
from ..planner.search.names import name
from .layout_pictures import ROW, figures_of, memory_alt, memory_bars
from .layout_settings import CHOICES, Settings

_NAMES = ("model", "cluster", "schedule", "context_method", "sharding", "recompute")  # the others are numbers


@lru_cache(maxsize=256)
def _planned(settings: Settings) -> LayoutPlan:
    return plan_layout(settings.layout(), CLUSTERS[settings.cluster])


def layout_explorer(**given: object) -> None:
    """Show the explorer; in a plain script print its first answer.

    Args:
        given: settings to begin with, such as model="llama-3.1-8b"; see `layout_settings.Settings`.

    Raises:
        RecipeError: a setting that cannot be.
    """
    start = Settings(**given)
    if not in_notebook():
        _speak(start)
        return
    Explorer(start).show()


def _speak(settings: Settings) -> None:
    plan = _planned(settings)
    print(text_table([("layout", *ROW), (name(plan.layout), *figures_of(found_of(plan)))]))
    print(f"[figure] {memory_alt(plan)}\n[figure] {timeline_alt(plan)}")


class Explorer:
    """The controls and what they show.

    Args:
        start: what they are set to at first.
    """

    def __init__(self, start: Settings) -> None:
        import ipywidgets

        self.controls = {key: _control(ipywidgets, key, value) for key, value in asdict(start).items()}
        self.said, self.memory, self.timeline, self.table = (ipywidgets.HTML() for _ in range(4))
        self.search = ipywidgets.Button(description="search all layouts", layout={"width": "16em"})
        self.bar = ipywidgets.FloatProgress(min=0.0, max=1.0, layout={"width": "24em", "visibility": "hidden"})
        self.doing = ipywidgets.Label()
        self.seen: dict[Settings, Found] = {}
        self._silent = False
        self._answer(start)
        for control in self.controls.values():
            control.observe(self._moved, names="value")
        self.search.on_click(lambda _: self._search())
        columns = ipywidgets.GridBox(
            list(self.controls.values()), layout={"grid_template_columns": "repeat(2, 26em)", "grid_gap": "2px 1em"}
        )
        searching = ipywidgets.HBox([self.search, self.bar, self.doing])
        self.box = ipywidgets.VBox([columns, self.said, self.memory, self.timeline, searching, self.table])

    def show(self) -> None:
        """Show the explorer, and where no widgets can be shown, the pictures of its first answer."""
        from IPython.display import display

        data: dict[str, Any] = dict(self.box._repr_mimebundle_())
        metadata = {}
        try:
            plan = _planned(self.settings())
        except RecipeError as error:
            data["text/plain"] = str(error)
        else:
            figures = [memory_bars(plan), draw_timeline(plan)]
            words = f"{memory_alt(plan)} {timeline_alt(plan)}"
            data |= {"image/png": _stacked(figures), "text/plain": words}
            metadata = {"image/png": {"alt": words, "width": size_on_page(figures[0])["width"]}}
        display(data, raw=True, metadata=metadata)

    def settings(self) -> Settings:
        """Return what the controls are set to."""
        return Settings(**{key: control.value for key, control in self.controls.items()})

    def _moved(self, _: object) -> None:
        if not self._silent:
            self._answer(self.settings())

    def _answer(self, settings: Settings) -> None:
        """Plan the settings and show the answer; where there is none, say why in one line."""
        self.said.value, self.memory.value, self.timeline.value = "<p>Planning…</p>", "", ""  # nothing stale
        try:
            plan = _planned(settings)
        except (RecipeError, RuntimeError, ValueError) as error:  # of a library that cannot do what the layout wants
            self.said.value = f'<p class="layout-said"><b>{html.escape(str(error))}</b></p>'
            return
        found = found_of(plan)
        said = f"<b>{html.escape(name(plan.layout))}</b>: {plan.grade}"
        self.seen[settings] = found
        on = f"{settings.model} on {settings.gpus} x {plan.cluster.gpu.name}"
        self.said.value = (
            f'<p class="layout-said">{on}: {said}, {found.seconds:.4g} s per step '
            f"({found.low:.3g} to {found.high:.3g}), MFU {found.mfu:.1%}</p>"
        )
        self.memory.value = _image(memory_bars(plan), memory_alt(plan))
        self.timeline.value = _image(draw_timeline(plan), timeline_alt(plan))
        self._fill(settings)

    def _fill(self, now: Settings | None = None) -> None:
        """Write the table: what was seen of this model, these GPUs and this batch, the best first."""
        now = now or self.settings()
        alike = {s: f for s, f in self.seen.items() if _question(s) == _question(now)}
        rows = sorted(alike.items(), key=lambda pair: (not pair[1].fits, pair[1].seconds))
        lines = "".join(self._line(found, settings == now) for settings, found in rows)
        head = "".join(f'<th style="padding: 0 .5em">{title}</th>' for title in ("layout", *ROW))
        self.table.value = f'<table class="layout-table"><tr>{head}</tr>{lines}</table>'

    def _line(self, found: Found, now: bool) -> str:
        first = html.escape(name(found.layout))
        cells = "".join(f'<td style="text-align: right; padding: 0 .5em">{figure}</td>' for figure in figures_of(found))
        weight = "bold" if now else "normal"
        return f'<tr style="font-weight: {weight}"><td style="text-align: left">{first}</td>{cells}</tr>'

    def _search(self) -> None:
        """Search all layouts of this model, these GPUs and this batch, and enter the best into the table."""
        from ..planner.catalog.archs import arch_of
        from ..planner.search.kept import answer
        from ..planner.search.question import Question

        now, told = self.settings(), [0.0]

        def tell(what: str, done: float, of: float) -> None:
            if time.monotonic() - told[0] > 0.2:
                told[0] = time.monotonic()
                self.doing.value, self.bar.value = what, done / of if of else 0.0

        self.search.disabled, self.bar.layout.visibility = True, "visible"
        try:
            question = Question(arch_of(now.model), CLUSTERS[now.cluster], now.gpus, now.tokens, now.seq)
            result = answer(question, min(8, os.cpu_count() or 1), tell)
        except RecipeError as error:
            self.doing.value = str(error)
        else:
            self.doing.value = f"{result.layouts:,} layouts, {result.planned:,} of them planned"
            self.seen |= {s: found for found in result.best if (s := now.of(found.layout))}
            self._fill()
        finally:
            self.search.disabled, self.bar.layout.visibility = False, "hidden"


def _question(settings: Settings) -> tuple:
    return settings.model, settings.cluster, settings.gpus, settings.tokens, settings.seq


def _control(ipywidgets: Any, key: str, value: object) -> Any:
    look = {"description": key.replace("_", " "), "style": {"description_width": "9em"}, "layout": {"width": "25em"}}
    # No sliders: a number that is typed beside a slider of choices vanishes, and the slider stays where it is.
    options = CHOICES[key] if key in _NAMES else [(f"{number:,}", number) for number in CHOICES[key]]
    return ipywidgets.Dropdown(options=options, value=value, **look)


def _image(figure: Figure, alt: str) -> str:
    data = base64.b64encode(to_png(figure)).decode()
    return f'<img alt="{html.escape(alt)}" width="{size_on_page(figure)["width"]}" src="data:image/png;base64,{data}">'


def _stacked(figures: list[Figure]) -> bytes:
    """Return the figures as one picture, one below the other."""
    from PIL import Image

    images = [Image.open(io.BytesIO(to_png(figure))).convert("RGB") for figure in figures]
    whole = Image.new("RGB", (max(image.width for image in images), sum(image.height for image in images)), "white")
    top = 0
    for image in images:
        whole.paste(image, (0, top))
        top += image.height
    drawn = io.BytesIO()
    whole.quantize(256).save(drawn, "png", optimize=True)
    return drawn.getvalue()
