"""Comparisons with other clients, side by side in one run: ``python -m benchmarks``."""
