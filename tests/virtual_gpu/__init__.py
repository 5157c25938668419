"""Dry runs: what a program takes on a GPU that is not there."""
