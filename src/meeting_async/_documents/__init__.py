"""What can be uploaded, and how its bytes are read without blocking the event loop.

A :class:`~meeting_async._documents.document.Document` is prepared once per upload (``prepared``),
and each attempt makes a form of it. A new kind of document is a module with a ``Source``
(``source``), which ``detect`` finds.
"""
