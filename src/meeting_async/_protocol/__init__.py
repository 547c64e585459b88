"""The protocol, sans-I/O: requests, replies, the multipart form, signatures, verdicts.

Everything here is a pure function or a frozen value, so its tests need no event loop. Sockets are
in ``_http``, documents in ``_documents``, attempts and retries in ``_delivery``.
"""
