"""A class on the workers of a Dask scheduler: nothing is lost, nothing is graded twice, whatever ends in between.

Workers are processes of this machine in which a hand-in runs nothing: see local_cluster.py. `make thousand` has some
run in the sandbox.
"""

from helpers.course.grade import GradeError, grade, grading

import pytest

from ..sampling import runs_whole
from .local_cluster import LocalCluster, gradebook, wait_for
from .results import X1, hand_in, rows_of
from .thousand import grade_thrice

pytest.importorskip("distributed", reason="needs Dask: pip install training-at-scale[cluster]")
MANY = 1000 if runs_whole() else 16


@pytest.fixture
def cluster(tmp_path):
    made = LocalCluster(tmp_path)
    yield made
    made.end()


def a_class(tmp_path, count):
    for n in range(count):
        hand_in(tmp_path, f"student {n:04}")


@pytest.mark.slow
def test_a_worker_and_the_command_are_killed_and_the_gradebook_is_that_of_one_machine(tmp_path):
    count = grade_thrice(tmp_path, MANY, lasts=0.02 if runs_whole() else 0.3)
    assert count.equal
    assert MANY / 5 < count.stored < MANY
    assert len(count.points) > 2  # points differ, or equal gradebooks say nothing
    # Only what was under way when something was killed may have run again: two a thread.
    assert count.twice <= 2 * 3 + 1


@pytest.mark.slow
def test_unfit_workers_get_nothing_and_a_restarted_scheduler_goes_on(tmp_path, cluster):
    a_class(tmp_path, 10)
    for kind in ("old", "open"):
        cluster.worker(KIND=kind)
    run = cluster.command(tmp_path / "class", tmp_path / "out")
    heard = ""
    while not all(words in heard for words in ("its course is 0.1+old", "it has no sandbox", "Waiting for a worker")):
        line = run.stdout.readline()
        assert line, heard
        heard += line
    assert not cluster.runs("began")
    cluster.worker(LASTS="0.5")
    wait_for(lambda: len(cluster.runs()) > 2)
    port = int(cluster.address.rpartition(":")[2])
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    cluster.start_scheduler(port)
    cluster.worker(LASTS="0.1")
    said = heard + run.communicate(timeout=1500)[0]
    assert run.returncode == 0, said
    assert said.count("gets no hand-ins: its course is 0.1+old, here it is") == 1
    assert said.count("gets no hand-ins: it has no sandbox") == 1
    assert "Waiting for a worker that can grade; 10 hand-ins are left." in said
    assert "Waiting for the scheduler at" in said
    rows = rows_of(gradebook(tmp_path / "out"))
    assert [row["status"] for row in rows] == ["graded"] * 10


def test_no_scheduler_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "sources", lambda: [X1])
    a_class(tmp_path, 1)
    with pytest.raises(GradeError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        grade(tmp_path / "class", tmp_path / "out", cluster="tcp://127.0.0.1:1")
