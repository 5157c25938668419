"""The files of wrong and right answers fit the reference and their names, and errors in them name file and line."""

import builtins
import re
import subprocess
import symtable
import sys

import pytest

from .answers import RIGHT, WRONG, read, styles, topics
from .answers.diffs import parse
from .answers.mutant import ROOT, Hunk, reference_text

HEADER = "@@ scale_grows: no growth @@\n"
TEXT = "def f(x):\n    if x:\n        return 1\n\n    return 1\n"


def parsed(text):
    return parse(text, "x1.scaler", "scaler.diff")


@pytest.mark.parametrize("topic", topics())
def test_each_wrong_answer_is_other_code_that_compiles(topic):
    for mutant in topics()[topic].mutants:
        source = mutant.source()
        assert source != reference_text(topic), f"{mutant.part}: {mutant.name}"
        compile(source, f"{mutant.part}: {mutant.name}", "exec")
        assert not undefined_names(source), f"{mutant.hunks[0].place}: {undefined_names(source)}"


@pytest.mark.parametrize("topic", topics())
def test_right_answers_name_what_there_is(topic):
    texts = topics()[topic].right | {name: text for name, (_, text) in styles(topic).items()}
    assert {name: undefined_names(text) for name, text in texts.items() if undefined_names(text)} == {}


def test_names_that_nothing_defines_are_found():
    text = "import a\n\ndef f(x):\n    for y in x:\n        z = [w for w in a.b(y, c)] if y else z\n    return len(d)\n"
    assert undefined_names(text) == {"c", "d"}


def undefined_names(text):
    """Return the names that are not the module's, a function's or Python's: the reference no longer has them.

    An answer that stops there fails every check, also where it should be told from a right one.
    """
    module = symtable.symtable(text, "answers", "exec")
    known = {name for name in module.get_identifiers() if is_made(module.lookup(name))} | {*dir(builtins), "__name__"}
    tables, named = [module], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        symbols = [symbol for symbol in table.get_symbols() if symbol.is_global() or table is module]
        named |= {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
    return named - known


def is_made(symbol):
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


@pytest.mark.parametrize("topic", topics())
def test_no_wrong_answer_is_there_twice(topic):
    mutants = topics()[topic].mutants
    assert len({(m.part, m.rejected_by, m.name) for m in mutants}) == len(mutants)
    assert len({(m.part, m.rejected_by, m.source()) for m in mutants}) == len(mutants)


def test_files_lie_where_they_are_read():
    """A file in another folder, or with another ending, would be ignored."""
    assert {path.suffix for path in WRONG.glob("*/*")} == {".diff"}
    files = {path.relative_to(RIGHT) for path in RIGHT.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    parts = {path.relative_to(WRONG).with_suffix("") for path in WRONG.glob("*/*.diff")}
    assert {file.suffix for file in files} == {".py"}
    assert {file.parent for file in files} <= parts | {part.parent for part in parts}


def test_right_answers_are_named_like_their_files():
    for path in RIGHT.rglob("*.py"):
        name, text = read(path)
        assert text.startswith(f"# {name}\n\n"), path
        assert path.stem == "_".join(re.findall("[a-z0-9]+", name.lower().replace("'", ""))), path
    for topic, answers in topics().items():
        assert len({*answers.right, *styles(topic)}) == len(list((RIGHT / topic).rglob("*.py")))


def test_an_answer_to_a_part_runs_after_the_text_of_the_reference_and_imports_nothing_from_it():
    part, text = styles("x5")["scores by matrix products and an added mask"]
    assert part == "x5.ring"
    assert text.startswith(reference_text("x5"))
    assert text.rstrip().endswith("RingAttention.scores = staticmethod(scores)")
    own = [(reference_text(topic), text) for topic in topics() for _, text in styles(topic).values()]
    assert all("helpers.exercises.reference" not in text.removeprefix(reference) for reference, text in own)


def test_reading_all_answers_does_not_import_torch():
    read_all = "list(map(answers.styles, answers.topics()))"
    code = f"import sys; from tests import answers; {read_all}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_file_of_wrong_answers():
    first, second = parsed(
        "# X1's scaler\n\n"
        f"{HEADER}says: 1.0 twice\n-    a\n \n+    b: c\n\n# two places\n"
        "@@ backs_off: twice: here, there @@\n     x\n\n     y\n-\n+    z\n@@ and @@\n-    v\n"
    )
    assert (first.name, first.part, first.rejected_by) == ("no growth", "x1.scaler", "scale_grows")
    assert first.says == "1.0 twice"
    assert first.hunks == (Hunk("scaler.diff:3", "    a\n\n", "\n    b: c\n"),)
    assert (second.name, second.rejected_by, second.says) == ("twice: here, there", "backs_off", "")
    assert second.hunks == (
        Hunk("scaler.diff:10", "    x\n\n    y\n\n", "    x\n\n    y\n    z\n"),
        Hunk("scaler.diff:16", "    v\n", ""),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"# X1\n-    a\n{HEADER}-    b\n", "scaler.diff:2: a line before the first header"),
        ("@@ scale_grows @@\n-    a\n", "scaler.diff:1: a header is '@@ CHECK: NAME @@'"),
        ("@@ -3,1 +3,1 @@ def f\n-    a\n", "scaler.diff:1: a header is '@@ CHECK: NAME @@'"),
        ("@@ and @@\n-    a\n", "scaler.diff:1: a header is '@@ CHECK: NAME @@'"),
        (f"{HEADER}-    a\n@@ and @@\nsays: no\n-    b\n", "scaler.diff:3: a header is '@@ CHECK: NAME @@'"),
        (f"{HEADER}-    a\nsays: no\n", "scaler.diff:3: a line of a hunk begins with '-', '+' or a space"),
        (f"{HEADER}-    a\nb\n", "scaler.diff:3: a line of a hunk begins with '-', '+' or a space"),
        (f"{HEADER}+    a\n", "scaler.diff:1: nothing says where this goes"),
        (HEADER, "scaler.diff:1: nothing says where this goes"),
        (f"{HEADER}     a\n", "scaler.diff:1: this changes nothing"),
    ],
)
def test_an_error_in_a_file_names_its_line(text, error):
    with pytest.raises(ValueError, match=f"^{re.escape(error)}"):
        parsed(text)


@pytest.mark.parametrize(
    ("old", "error"),
    [
        ("    return 1\n", None),  # and not the end of the other, further indented
        ("        return 1\n\n", None),
        ("    if x:\n    return 1\n", "scaler.diff:1: these lines do not follow each other"),
        ("    if x:\n        return 2\n", "scaler.diff:1: the answer has no line '        return 2'"),
        ("\n", "scaler.diff:1: these lines are in the answer twice"),
    ],
)
def test_a_hunk_finds_its_lines_once_or_says_what_is_wrong(old, error):
    text = f"{TEXT}\n"
    if error is None:
        assert Hunk("scaler.diff:1", old, "").applied_to(text) == text.replace(f"\n{old}", "\n")
    else:
        with pytest.raises(ValueError, match=f"^{re.escape(error)}"):
            Hunk("scaler.diff:1", old, "").applied_to(text)
