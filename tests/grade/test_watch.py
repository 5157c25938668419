"""A folder that fills: what comes is graded when it is whole."""

from helpers.course.grade import watch


def looks(monkeypatch, *states):
    """Have each look at the folder find the next of `states`, without waiting."""
    left = list(states)
    monkeypatch.setattr(watch, "state_of", lambda folder: left.pop(0))
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)
    return left


def test_it_returns_when_what_has_come_stands_still(tmp_path, monkeypatch):
    growing = [{"ada": (size, size)} for size in (1, 5, 9)]
    left = looks(monkeypatch, {}, {}, *growing, growing[-1], {"never": (0, 0)})
    assert watch.wait_for_change(tmp_path, {}) == growing[-1]
    assert left == [{"never": (0, 0)}]


def test_a_file_that_went_again_is_no_change(tmp_path, monkeypatch):
    left = looks(monkeypatch, {"draft": (1, 1)}, {}, {}, {"ada": (1, 1)}, {"ada": (1, 1)})
    assert watch.wait_for_change(tmp_path, {}) == {"ada": (1, 1)}
    assert left == []


def test_what_came_while_hand_ins_ran_is_seen(tmp_path):
    seen = watch.state_of(tmp_path)
    (tmp_path / "ben").mkdir()
    (tmp_path / "ben" / "a.ipynb").write_text("early")
    now = watch.state_of(tmp_path)
    assert now != seen
    assert now[str(tmp_path / "ben" / "a.ipynb")][0] == 5
