"""Tests of `--rates`."""
