"""Tests of the optional modules."""
