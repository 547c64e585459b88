"""One call, from its arguments to its result: attempts, waits, limits, events, and room locks.

``history.py`` lists what happened, and ``decide.py`` decides what follows (both sans-I/O);
``upload.py`` and ``json_call.py`` send and sleep. ``_http`` sends requests, ``_protocol`` reads
replies, and ``_batch`` runs many uploads.

A *check* asks whether a room is active; a *probe*, an empty form, asks whether it is free. Both are
*questions*. *Evidence* tells whether a document has arrived. A *permit* lets a job of a batch send.
"""
