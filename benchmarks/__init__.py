"""Ratios against the obvious alternatives, measured in one run; never part of the tests."""
