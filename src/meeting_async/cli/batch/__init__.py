"""``meeting-async batch``: a manifest or a folder is read and checked as a whole, then delivered.

``rows`` reads the text of a manifest and ``manifest`` makes entries of it or of a folder. Sending
is not done here but in ``cli/delivery.py``.
"""
