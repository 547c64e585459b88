"""Many uploads: a batch, its jobs and their order, and the journal that makes it resumable.

``batch.py`` starts jobs and counts their outcomes in its report (``results.py``), ``flow.py`` reads
jobs and passes outcomes on, ``scheduler.py`` decides which job is next, ``journal.py`` and
``sqlite_journal.py`` store their states. ``job.py`` delivers one job, of a batch or of a queue, and
makes its outcome. ``_delivery`` uploads one document.
"""
