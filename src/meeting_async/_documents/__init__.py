"""What can be uploaded, and how its bytes are read without blocking the event loop.

A :class:`~meeting_async._documents.document.Document` is prepared once per upload
(``prepared.py``), and each attempt makes a form of it. For a new kind of document see
``detect.py``.
"""
