"""Values that cross a boundary: tolerant about what servers send, silent about what is private."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meeting_async._models import ActiveRoom, Attempt, Participant, Reply, UploadReceipt, Verdict

PERSON = {
    "sid": "PA_1",
    "identity": "anna",
    "name": "Anna Ünal",
    "state": "ACTIVE",
    "metadata": '{"is_presenter": true}',
    "joined_at": "1767225600",
    "version": 3,
}
INFO = {
    "room_title": "Algebra 代數",
    "room_id": "room01",
    "sid": "RM_1",
    "joined_participants": "2",
    "is_running": 1,
    "is_recording": 0,
    "is_active_rtmp": 0,
    "webhook_url": "https://lms.example.com/hook?token=hush",
    "is_breakout_room": 0,
    "parent_room_id": "",
    "creation_time": "1767225500",
    "metadata": '{"lang": "hush"}',
    "a_field_of_next_year": [1, 2],
}
REPLY = {"status": True, "room": {"room_info": INFO, "participants_info": [PERSON, {}]}}
"""As the server of the facts answers: integers as text, flags as numbers, metadata as JSON text."""


ODD: list[Any] = [None, [], "room01", {}]


def room(**info: Any) -> ActiveRoom:
    """Read a reply whose ``room_info`` has these fields."""
    return ActiveRoom.from_reply("room01", {"room": {"room_info": info}})


def test_a_complete_reply() -> None:
    """Every field finds its place, and unknown ones are kept in ``raw``."""
    active = ActiveRoom.from_reply("room01", REPLY)
    facts = attrs.asdict(active, recurse=False)
    people = facts.pop("participants")
    assert facts == {
        "room_id": "room01",
        "title": "Algebra 代數",
        "sid": "RM_1",
        "is_running": True,
        "is_recording": False,
        "is_active_rtmp": False,
        "is_breakout_room": False,
        "parent_room_id": "",
        "joined_participants": 2,
        "creation_time": 1767225500,
        "webhook_url": "https://lms.example.com/hook?token=hush",
        "metadata": {"lang": "hush"},
        "raw": REPLY,
    }
    anna = ("anna", "Anna Ünal", "PA_1", "ACTIVE", 1767225600, {"is_presenter": True}, PERSON)
    assert people == (Participant(*anna), Participant(None, None, None, None, None, None, {}))
    assert "hush" not in repr(active)
    assert "presenter" not in repr(people)


@pytest.mark.parametrize(
    "reply",
    [
        *({"room": value} for value in ODD),
        {},
        {"room": {"room_info": None, "participants_info": None}},
        {"room": {"room_info": 1, "participants_info": "anna"}},
        {"room": {"participants_info": [None, 1, "anna", []]}},
    ],
)
def test_missing_and_odd_structure_is_never_an_error(reply: dict[str, Any]) -> None:
    """``docs/interface.md`` does not show this reply, so anything may be absent."""
    active = ActiveRoom.from_reply("room01", reply)
    assert (active.room_id, active.participants, active.raw) == ("room01", (), reply)
    assert {active.title, active.is_running, active.creation_time, active.metadata} == {None}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
FIELDS = st.sampled_from(sorted({*INFO, *PERSON}))


@settings(max_examples=50)
@given(st.dictionaries(FIELDS, JSON), st.dictionaries(FIELDS, JSON))
def test_no_value_of_a_field_is_an_error(info: dict[str, Any], person: dict[str, Any]) -> None:
    """Whatever types a server sends: typed fields are of their type or ``None``."""
    reply = {"room": {"room_info": info, "participants_info": [person]}}
    active = ActiveRoom.from_reply("room01", reply)
    for text in (active.title, active.sid, active.webhook_url, active.parent_room_id):
        assert text is None or isinstance(text, str)
    for flag in (active.is_running, active.is_recording, active.is_active_rtmp):
        assert flag is None or isinstance(flag, bool)
    for integer in (active.joined_participants, active.creation_time):
        assert integer is None or type(integer) is int
    assert active.participants[0].raw == person


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        *((0, 0), (-7, -7), ("7", 7), ("-7", -7), (2**64 - 1, 2**64 - 1)),
        ("18446744073709551615", 2**64 - 1),
        *((junk, None) for junk in ("", "-", "--7", "+7", " 7", "7.5", "1e3", "1_0", "٣", "²")),
        *((junk, None) for junk in ("9" * 5000, True, False, 7.5, *ODD)),
    ],
)  # fmt: skip
def test_integers(given_value: Any, expected: int | None) -> None:
    """64-bit integers arrive as JSON strings; signed and unsigned ones, and nothing else."""
    assert room(creation_time=given_value).creation_time == expected
    assert Participant.from_reply({"joined_at": given_value}).joined_at == expected


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        *((yes, True) for yes in (1, 2, "1", True)),
        *((no, False) for no in (0, "0", False)),
        *((junk, None) for junk in ("true", "", math.nan, *ODD)),
    ],
)
def test_flags(given_value: object, expected: bool | None) -> None:
    """Flags are 0 and 1 on the wire; JSON's own booleans will do."""
    assert room(is_recording=given_value).is_recording is expected


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        ('{"a": [1, "ü"]}', {"a": [1, "ü"]}),
        *(("null", None), ("", None), (None, None), ({"a": 1}, {"a": 1})),
        *((text, text) for text in ("not json", "{", "[" * 100_000, "9" * 5_000)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_metadata_is_decoded_if_it_can_be(given_value: object, expected: object) -> None:
    """Metadata is a JSON text in JSON; what cannot be decoded stays as it is."""
    assert room(metadata=given_value).metadata == expected


def test_replies_and_receipts_do_not_show_their_content() -> None:
    """Replies carry access tokens and cookies."""
    reply = Reply(200, ((b"Set-Cookie", b"session=hush"),), b'{"token": "hush"}')
    attempt = Attempt(1, 0.0, 1.0, Verdict.ACCEPTED, 200, "HTTP 200 (ok)", 9, 0.5)
    receipt = UploadReceipt(
        room_id="room01",
        document="deck.pdf",
        size=9,
        msg="ok",
        status_code="SUCCESS",
        seconds=1.0,
        attempts=(attempt,),
        headers=(("set-cookie", "hush"),),
        raw={"token": "hush"},
    )
    assert "hush" not in f"{reply} {receipt}"
    for again in (pickle.loads(pickle.dumps(receipt)), copy.deepcopy(receipt)):
        assert again == receipt
    assert hash(receipt) == hash(attrs.evolve(receipt, raw={}))
