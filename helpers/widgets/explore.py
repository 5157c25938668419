"""Turn a drawing function into a figure with controls.

The picture is an `<img>` in a widget, replaced whenever a control moves: no front end needs more than ipywidgets, and
no `Output` widget hides the figure from those who read the notebook without a kernel. They see the first picture, which
is in the same output as a plain PNG.
"""

import base64
import functools
import html
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from ..core.notebook import in_notebook, show, size_on_page, to_png


def explore(draw: Callable[..., Figure], alt: str, **controls: tuple[object, Sequence]) -> None:
    """Show `draw(**values)` with one control for each keyword.

    Args:
        draw: makes the figure from the values of the controls; called again on every move.
        alt: a description of the figure.
        controls: (first value, all values) for each keyword of `draw`; a `range` becomes a slider, any other
            sequence a drop-down list. An underscore in the keyword is a space in the label.
    """
    figure = draw(**{name: first for name, (first, _) in controls.items()})
    if not in_notebook():
        show(figure, alt)
        return
    import ipywidgets
    from IPython.display import display

    from .draw_ahead import DrawAhead

    def image(figure: Figure) -> str:
        data = base64.b64encode(to_png(figure)).decode()
        width = size_on_page(figure)["width"]
        return f'<img alt="{html.escape(alt)}" width="{width}" src="data:image/png;base64,{data}">'

    widgets = {}
    for name, (first, values) in controls.items():
        look = {"value": first, "description": name.replace("_", " "), "style": {"description_width": "initial"}}
        if isinstance(values, range):
            limits = {"min": values[0], "max": values[-1], "step": values.step, "continuous_update": False}
            widgets[name] = ipywidgets.IntSlider(**look, **limits, layout={"width": "32em"})
        else:
            widgets[name] = ipywidgets.Dropdown(**look, options=values)
    picture = ipywidgets.HTML(image(figure))

    @functools.cache
    def drawn(*values: object) -> str:
        return image(draw(**dict(zip(widgets, values, strict=True))))

    def present() -> tuple:
        return tuple(widget.value for widget in widgets.values())

    ahead = DrawAhead(drawn, [values for _, values in controls.values()], present)

    def redraw(_: object) -> None:
        picture.value = drawn(*present())
        ahead.start()

    for widget in widgets.values():
        widget.observe(redraw, names="value")
    ahead.start()
    box = ipywidgets.VBox([*widgets.values(), picture])
    data = {**box._repr_mimebundle_(), "image/png": to_png(figure), "text/plain": alt}
    display(data, raw=True, metadata={"image/png": {"alt": alt, **size_on_page(figure)}})
