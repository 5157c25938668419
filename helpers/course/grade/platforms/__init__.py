"""Autograder packages: the grader as learning platforms start it, for one hand-in at a time. Built by one command."""
