"""Tests of one delivery."""
