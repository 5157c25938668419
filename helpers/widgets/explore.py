"""Turn a drawing function into a figure with controls.

The picture is an `<img>` in a widget that is exchanged whenever a control moves: no front end needs more than
ipywidgets, and no `Output` widget hides the figure from those who read the notebook without a kernel. They get
the first picture, which travels in the same output as plain PNG.
"""

import base64
import html
from collections.abc import Callable

from matplotlib.figure import Figure

from ..figures import in_notebook, show, to_png


def explore(draw: Callable[..., Figure], alt: str, **controls: object) -> None:
    """Show `draw(**values)` with one ipywidgets control for each keyword.

    Args:
        draw: makes the figure from the values of the controls; called again on every move.
        alt: what the figure shows, in words.
        controls: ipywidgets controls that have a `value`; their names are the keywords of `draw`.
    """
    figure = draw(**{name: control.value for name, control in controls.items()})
    if not in_notebook():
        show(figure, alt)
        return
    import ipywidgets
    from IPython.display import display

    def image(figure: Figure) -> str:
        data = base64.b64encode(to_png(figure)).decode()
        return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'

    picture = ipywidgets.HTML(image(figure))

    def redraw(_: object) -> None:
        values = {name: control.value for name, control in controls.items()}
        picture.value = image(draw(**values))

    for control in controls.values():
        control.observe(redraw, names="value")
    box = ipywidgets.VBox([*controls.values(), picture])
    bundle = box._repr_mimebundle_()
    display({**bundle, "image/png": to_png(figure), "text/plain": alt}, raw=True)
