"""Autograder packages: the grader as learning platforms start it, one submission at a time. One command builds them."""
