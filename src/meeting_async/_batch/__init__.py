"""Many uploads: a batch, its jobs and their order, and the journal that makes it resumable.

``batch.py`` starts jobs and counts outcomes in its report (``jobs.py``), ``flow.py`` reads jobs and
passes outcomes on, ``job_runner.py`` runs one job, ``scheduler.py`` decides which job is next,
``sqlite_journal.py`` stores their states. ``deliver.py`` is what a batch and a queue have in
common: it delivers one job and makes its outcome. ``_delivery`` uploads one document.
"""
