"""What the prefetcher's probe hands to an answer, and how long it waits for it."""

import threading

from helpers.exercises.data_loading import patience
from helpers.exercises.data_loading.parcel import Parcel
from helpers.exercises.data_loading.patience import ended, patiently
from helpers.exercises.data_loading.watched_source import BEGINNING, Planned, WatchedSource, numbered

import pytest
import torch


def test_a_source_knows_who_draws_and_fails_where_it_should():
    source = WatchedSource(numbered(4), fails_at=2)
    drawn = iter(source)
    assert [int(next(drawn)[1][0]), int(next(drawn)[1][0])] == [0, 1]
    with pytest.raises(Planned):
        next(drawn)
    assert source.threads == [threading.current_thread()] * 2
    with pytest.raises(Planned):
        iter(WatchedSource(numbered(4), fails_at=BEGINNING))


def test_a_parcel_writes_down_its_journey():
    log = []
    parcel = Parcel.of(7, log)
    assert isinstance(parcel, torch.Tensor)
    sent = parcel.pin_memory().to(torch.device("cuda"), non_blocking=True)
    parcel.cuda()
    assert [(entry["step"], entry.get("pinned"), entry.get("non_blocking")) for entry in log] == [
        ("pin", None, None),
        ("send", True, True),
        ("send", False, False),
    ]
    assert (sent.number, sent.place, sent.is_pinned()) == (7, "cuda", False)


def test_a_loop_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(patience, "PATIENCE", 0.05)
    over = threading.Event()
    assert isinstance(patiently(over.wait)[1], TimeoutError)
    over.set()
    assert patiently(lambda: 3) == (3, None)
    assert isinstance(patiently(lambda: 1 // 0)[1], ZeroDivisionError)


def test_threads_that_stay_are_seen():
    before, over = set(threading.enumerate()), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert not ended(before)
    over.set()
    thread.join()
    assert ended(before)
