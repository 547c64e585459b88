"""What can be uploaded, and how its bytes are read without blocking the event loop.

A :class:`~meeting_async._documents.document.Document` is prepared once per upload, and each attempt
opens a form of it. ``detect`` finds out what a caller passed, ``source`` has the protocol of all
sources, and ``files`` and ``streams`` implement it.
"""
