"""The share of a lab's code that learners only read."""

from helpers.__main__ import main
from helpers.course.build.shares import lines_by_kind, shares_table
from helpers.course.build.source import Source, sources

import pytest

MOST = 0.455  # of a lab's code: 45 percent, rounded

LAB = '''# %% [markdown] name="title"
# # Example

# %% name="setup" setup=true
import math

# %% name="guess"
my_guess = None
### BEGIN GUESS
my_guess = 3
### END GUESS
one_guess = Prediction("one", my_guess, "")

# %% name="measured"
one_guess.reveal(math.pi)


# %% name="double" answer=true
def double(x):
    """Return twice as much."""

    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


# %% name="double_check"
double = check("x9.double", double)

# %% name="double_hint"
hint("x9.double")


# %% name="given"
def given(x):
    """Return `x`.

    In several lines.
    """
    print(x)  # a line that prints, inside of a function
    return x


# a comment
for number in range(3):
    print(
        number,
        given(number),
    )
for number in range(3):
    given(number)
    print(number)
figure = Figure()
axes = figure.add_subplot()
axes.plot([1, 2])
show(figure, "words")
claims.record("C1", "words")
claims
'''


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "42_example.py"
    path.write_text(LAB, encoding="utf-8")
    return Source(path)


def test_each_line_of_code_is_counted_once(source):
    # given: def, return, for, given(number)
    assert lines_by_kind(source) == {"answers": 4, "predicted": 4, "shown": 13, "given": 4}


def test_the_table_has_the_share_of_all_lines(source):
    header, line = shares_table([source]).splitlines()
    assert header.split() == ["lab", "answers", "predicted", "shown", "given", "share", "given"]
    assert line.split() == ["42_example", "4", "4", "13", "4", "16%"]


def test_the_command_prints_labs_and_leaves_exercises_out(capsys):
    assert main(["build", "--shares", "03"]) == 0
    out = capsys.readouterr().out
    assert "03_mixed_precision" in out
    assert "03b_x1_amp_cnn" not in out


@pytest.mark.parametrize("lab", [each for each in sources() if not each.graded], ids=lambda each: each.name)
def test_learners_only_read_less_than_half_of_a_lab(lab):
    counts = lines_by_kind(lab)
    assert counts["given"] < MOST * counts.total()
