"""Policies of waiting for a room, simulated: ``python -m benchmarks.waiting``."""
