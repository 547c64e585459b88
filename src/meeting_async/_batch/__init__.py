"""Many uploads: a batch, its jobs and their order, and the journal that makes it resumable.

``batch.py`` begins jobs and keeps account, ``flow.py`` reads jobs and hands outcomes over,
``job_runner.py`` does one job, ``scheduler.py`` decides which goes on next, ``sqlite_journal.py``
remembers. How one document is uploaded is in ``_delivery``.
"""
