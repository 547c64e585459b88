"""What can be uploaded, and how its bytes are read without blocking the event loop.

``document`` is the entrance: a :class:`~meeting_async._documents.document.Document` is prepared
once per upload, and each attempt opens a form of it. ``detect`` tells what a caller passed,
``source`` says what every kind of source does, and ``files`` and ``streams`` are the kinds.
"""
