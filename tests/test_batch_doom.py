"""What dooms all stops before anything large is sent; what dooms a room stops that room only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from _batches import ABSENT, PDF, Town, Visit, client_of, job, jobs_for
from _courses import refused
from _fakes import Act, accepted, reply, record
from _peer import Connection, Peer, closed_port as _closed  # noqa: F401
from meeting_async import BatchReport, MeetingClient, RetryPolicy, Turnstile, UploadJob, errors
from meeting_async.testing import MeetingServer
