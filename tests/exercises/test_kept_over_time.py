"""Picture of what a forward and a backward pass keep: heights and order are those of checkpointing."""

from helpers import COLORS, kept_over_time

from matplotlib.colors import to_hex


def test_heights_are_the_tensors_held():
    above, below = kept_over_time(blocks=4, keeps=3).axes
    assert [bar.get_height() for bar in above.patches] == [3, 6, 9, 12, 12, 9, 6, 3]
    assert [bar.get_height() for bar in below.patches] == [1, 2, 3, 4, 7, 7, 6, 6, 5, 5, 4, 4]


def test_each_block_runs_again_before_its_backward_pass():
    _, below = kept_over_time(blocks=2, keeps=3).axes
    forward, again, backward = (to_hex(COLORS[i]) for i in (3, 1, 2))
    colors = [to_hex(bar.get_facecolor()) for bar in below.patches]
    assert colors == [forward, forward, again, backward, again, backward]
    assert [text.get_text() for text in below.texts] == ["0", "1", "1", "1", "0", "0"]
