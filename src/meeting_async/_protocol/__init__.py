"""The wire, without input or output: requests, replies, the multipart form, signatures, verdicts.

Everything here is a pure function or a frozen value, so it is tested without an event loop.
Sockets are in ``_http``, documents in ``_documents``, and what follows an attempt in ``_delivery``.
"""
