"""What can be uploaded, and how its bytes are read without blocking the event loop.

A :class:`~meeting_async._documents.document.Document` is prepared once per upload (``prepared``),
and each attempt makes a form of it. A new kind of document is a row of the list in ``detect``, and
a module with its ``Source`` (``source``).
"""
