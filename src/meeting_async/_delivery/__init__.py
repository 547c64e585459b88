"""One call, from its arguments to its result: attempts, waits, limits, events, and room locks.

``retry.py`` decides, without input or output, what follows an attempt; ``upload.py`` and
``json_call.py`` attempt and sleep. How a request gets to the server is in ``_http``, what its reply
means in ``_protocol``, and many uploads together in ``_batch``.
"""
