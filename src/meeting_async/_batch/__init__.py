"""Many uploads: a batch, its jobs and their order, and the journal that makes it resumable.

``batch.py`` reads jobs and keeps account, ``job_runner.py`` does one job, ``scheduler.py`` and
``limiter.py`` decide which job goes on next, ``sqlite_journal.py`` remembers. How one document is
uploaded is in ``_delivery``.
"""
