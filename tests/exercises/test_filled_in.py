"""Stubs are told from answers without a call."""

import functools

from helpers.exercises.filled_in import filled_in

import pytest
import torch


def stub(x):
    raise NotImplementedError()


def answer(x):
    return x


def half_done(x):
    def inner(y):
        raise NotImplementedError()

    return inner


@functools.cache
def decorated_stub(x):
    raise NotImplementedError()


class Stubs:
    def __init__(self):
        self.given = 1

    def method(self):
        raise NotImplementedError()


class Static:
    @staticmethod
    def method():
        raise NotImplementedError()


class Property:
    @property
    def method(self):
        raise NotImplementedError()


class StubFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise NotImplementedError()


class AnswerFunction(torch.autograd.Function):  # has a member that has the class as a member
    @staticmethod
    def forward(ctx, x):
        return x


class Answer:
    @staticmethod
    def method():
        return 1

    @property
    def size(self):
        return 2


@pytest.mark.parametrize("unfinished", [stub, half_done, decorated_stub, Stubs, Static, Property, StubFunction])
def test_a_stub_is_seen_wherever_it_is(unfinished):
    assert not filled_in(unfinished)


@pytest.mark.parametrize("finished", [answer, lambda x: x, functools.cache(answer), Answer, AnswerFunction, len])
def test_an_answer_is_not_taken_for_a_stub(finished):
    assert filled_in(finished)
