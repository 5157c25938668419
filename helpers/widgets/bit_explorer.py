"""Bit explorer: type a number or toggle bits, and see how the format reads it."""

import html

from ..core.notebook import in_notebook
from ..formats.float_format import FORMATS, FloatFormat

_COLORS = ("#D55E00", "#E69F00", "#56B4E9")  # sign, exponent, fraction


def explain_bits(value: float) -> str:
    """Return `value` in every format: its bits, and the number that is stored instead."""
    lines = []
    for form in FORMATS.values():
        pattern = form.encode(value)
        bits = f"{pattern:0{form.bits}b}"
        cut = 1 + form.exponent_bits
        lines.append(f"{form.name}  {bits[0]} {bits[1:cut]:>8} {bits[cut:]:23}  {form.describe(pattern)}")
    return "\n".join(lines)


def explore_bits(value: float = 0.1, name: str = "FP16") -> None:
    """Show the explorer, starting with `value` in the format called `name`; in a plain script, a table."""
    if not in_notebook():
        print(explain_bits(value))
        return
    import ipywidgets
    from IPython.display import display

    number = ipywidgets.FloatText(value=value, description="number", layout={"width": "16em"})
    chooser = ipywidgets.Dropdown(value=name, options=tuple(FORMATS), description="format", layout={"width": "16em"})
    row, words = ipywidgets.HBox(layout={"flex_flow": "row wrap"}), ipywidgets.HTML()
    busy = False

    def form() -> FloatFormat:
        return FORMATS[chooser.value]

    def show_pattern(pattern: int) -> None:
        above = (
            form().decode(pattern + 1) if form().fields(pattern)[1] < 2 ** form().exponent_bits - 1 else float("nan")
        )
        gap = abs(above - form().decode(pattern))
        words.value = f"<pre>{html.escape(form().describe(pattern))}\ndistance to the next number: {gap:.3g}</pre>"

    def make_row(*_: object) -> None:
        nonlocal busy
        busy = True
        pattern = form().encode(number.value)
        buttons = []
        for place, bit in enumerate(f"{pattern:0{form().bits}b}"):
            part = 0 if place == 0 else 1 if place <= form().exponent_bits else 2
            button = ipywidgets.ToggleButton(value=bit == "1", description=bit, layout={"width": "2em", "padding": "0"})
            button.layout.border = f"2px solid {_COLORS[part]}"
            button.observe(toggled, names="value")
            buttons.append(button)
        row.children = buttons
        show_pattern(pattern)
        busy = False

    def toggled(_: object) -> None:
        if busy:
            return
        for button in row.children:
            button.description = "1" if button.value else "0"
        pattern = int("".join(button.description for button in row.children), 2)
        show_pattern(pattern)

    number.observe(make_row, names="value")
    chooser.observe(make_row, names="value")
    make_row()
    legend = ipywidgets.HTML("sign | exponent | fraction, from left to right; told apart by their borders")
    box = ipywidgets.VBox([ipywidgets.HBox([number, chooser]), row, legend, words])
    display({**box._repr_mimebundle_(), "text/plain": explain_bits(value)}, raw=True)
