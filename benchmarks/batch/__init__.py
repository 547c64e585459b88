"""Batches of uploads, measured: how long they take, and what they cost."""
