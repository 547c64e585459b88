"""The records: tolerant of what servers send, frozen, and silent about secrets."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _properties import fuzz
from meeting_async._attempts import Attempt
from meeting_async._policies import Timeouts
from meeting_async._records import (
    ActiveRoom,
    Body,
    Participant,
    Reply,
    Request,
    SignedHeaders,
    UploadReceipt,
)

PERSON: dict[str, Any] = {
    "sid": "PA_1",
    "identity": "anna",
    "name": "Anna Ünal",
    "state": "ACTIVE",
    "metadata": '{"is_presenter": true}',
    "joined_at": "1767225600",
    "version": 3,
}
REPLY: dict[str, Any] = {
    "status": True,
    "msg": "success",
    "status_code": "SUCCESS",
    "room": {
        "room_info": {
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
            "metadata": '{"lang": "de"}',
            "a_field_of_next_year": [1, 2],
        },
        "participants_info": [PERSON, {}],
    },
}


def room(**info: Any) -> ActiveRoom:
    """Read a reply whose ``room_info`` has these fields."""
    return ActiveRoom.from_reply("room01", {"room": {"room_info": info}})


def test_a_complete_reply() -> None:
    """Every field of a real server's reply finds its place."""
    active = ActiveRoom.from_reply("room01", REPLY)
    assert attrs.asdict(active, recurse=False) == {
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
        "metadata": {"lang": "de"},
        "participants": active.participants,
        "raw": REPLY,
    }
    assert active.participants == (
        Participant(
            identity="anna",
            name="Anna Ünal",
            sid="PA_1",
            state="ACTIVE",
            joined_at=1767225600,
            metadata={"is_presenter": True},
            raw=PERSON,
        ),
        Participant(None, None, None, None, None, None, {}),
    )


def test_everything_is_kept_in_raw() -> None:
    """Unknown fields are not lost."""
    active = ActiveRoom.from_reply("room01", REPLY)
    assert active.raw["room"]["room_info"]["a_field_of_next_year"] == [1, 2]
    assert active.participants[0].raw["version"] == 3


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"room": None},
        {"room": []},
        {"room": "room01"},
        {"room": {}},
        {"room": {"room_info": None, "participants_info": None}},
        {"room": {"room_info": [], "participants_info": {}}},
        {"room": {"room_info": 1, "participants_info": "anna"}},
        {"room": {"participants_info": [None, 1, "anna", []]}},
    ],
)
def test_missing_and_odd_structure_is_never_an_error(reply: dict[str, Any]) -> None:
    """The response of this call is "not shown" in the interface, so anything may be absent."""
    active = ActiveRoom.from_reply("room01", reply)
    assert active.room_id == "room01"
    assert active.participants == ()
    assert active.raw == reply
    others = attrs.asdict(active, recurse=False)
    assert {others[name] for name in others if name not in {"room_id", "participants", "raw"}} == {
        None
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted({*REPLY["room"]["room_info"], *PERSON}))


@fuzz
@given(st.dictionaries(FIELDS, JSON), st.dictionaries(FIELDS, JSON))
def test_no_value_of_a_field_is_an_error(info: dict[str, Any], person: dict[str, Any]) -> None:
    """Whatever types a server sends: typed fields are of their type or ``None``."""
    reply = {"room": {"room_info": info, "participants_info": [person]}}
    active = ActiveRoom.from_reply("room01", reply)
    for value in (active.title, active.sid, active.webhook_url, active.parent_room_id):
        assert value is None or isinstance(value, str)
    for flag in (active.is_running, active.is_recording, active.is_active_rtmp):
        assert flag is None or isinstance(flag, bool)
    for number in (active.joined_participants, active.creation_time):
        assert number is None or type(number) is int
    assert active.participants[0].raw == person
    assert repr(active)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0),
        (7, 7),
        (-7, -7),
        ("7", 7),
        ("-7", -7),
        ("007", 7),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551615", 2**64 - 1),
        (2**64 - 1, 2**64 - 1),
        ("", None),
        ("-", None),
        ("--7", None),
        ("+7", None),
        (" 7", None),
        ("7\n", None),
        ("7.5", None),
        ("1e3", None),
        ("0x10", None),
        ("1_000", None),
        ("٣", None),
        ("²", None),
        ("9" * 5000, None),
        (True, None),
        (False, None),
        (7.5, None),
        (None, None),
        ([7], None),
        ({}, None),
    ],
)
def test_integers(given: object, expected: int | None) -> None:
    """64-bit integers arrive as JSON strings; signed and unsigned ones, and nothing else."""
    assert room(creation_time=given).creation_time == expected
    assert Participant.from_reply({"joined_at": given}).joined_at == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, False),
        (1, True),
        (2, True),
        ("0", False),
        ("1", True),
        (True, True),
        (False, False),
        ("true", None),
        ("", None),
        (None, None),
        (math.nan, None),
        ([], None),
    ],
)
def test_flags(given: object, expected: bool | None) -> None:
    """Flags are 0 and 1 on the wire; JSON's own booleans will do as well."""
    assert room(is_recording=given).is_recording is expected


@pytest.mark.parametrize("given", [None, 1, True, [], {}, 1.5])
def test_texts_are_texts(given: object) -> None:
    """What is no text is no title."""
    assert room(room_title=given).title is None
    assert room(room_id=given).room_id == "room01"


def test_the_servers_room_id_wins() -> None:
    """A server may normalise an id; an empty one says nothing."""
    assert room(room_id="ROOM01").room_id == "ROOM01"
    assert room(room_id="").room_id == "room01"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"a": [1, "ü"]}', {"a": [1, "ü"]}),
        ("[]", []),
        ("null", None),
        ("12", 12),
        ("not json", "not json"),
        ("{", "{"),
        ("[" * 100_000, "[" * 100_000),
        ("9" * 5_000, "9" * 5_000),
        ("", None),
        (None, None),
        ({"a": 1}, {"a": 1}),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_metadata_is_decoded_if_it_can_be(given: object, expected: object) -> None:
    """Metadata is a JSON text in JSON; what cannot be decoded stays as it is."""
    assert room(metadata=given).metadata == expected
    assert Participant.from_reply({"metadata": given}).metadata == expected


def test_read_only_mappings_will_do() -> None:
    """A reply need not be a dict."""
    info = MappingProxyType({"room_title": "Algebra"})
    active = ActiveRoom.from_reply("room01", {"room": MappingProxyType({"room_info": info})})
    assert active.title == "Algebra"


# --- secrets -------------------------------------------------------------------------------------


def test_signed_headers_hide_both_values() -> None:
    """An upload's signature is a lasting credential for its room."""
    signed = SignedHeaders("devkey", "0123abcd")
    assert repr(signed) == "SignedHeaders(api_key=(hidden), signature=(hidden))"
    assert str(signed) == repr(signed)
    assert repr(SignedHeaders("", "")) == "SignedHeaders(api_key='', signature='')"


class StreamedBody:
    """A body of unknown content."""

    length = 12_345

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield one chunk."""
        yield b"hush"


@pytest.mark.parametrize(
    ("body", "shown"), [(b"room01 is hush", "14 bytes"), (StreamedBody(), "12345 bytes")]
)
def test_a_request_hides_headers_and_body(body: bytes | Body, shown: str) -> None:
    """What a request shows is where it goes and how long it is."""
    headers = ((b"API-KEY", b"devkey"), (b"HASH-SIGNATURE", b"0123abcd"))
    request = Request("POST", "https://meet.example.com/auth/room/x", headers, body)
    assert repr(request) == (
        "Request(method='POST', url='https://meet.example.com/auth/room/x', "
        f"headers=(2 hidden), body={shown}, reply_timeout=15.0)"
    )
    assert request.timeouts == Timeouts()


def test_bodies_are_recognised_by_what_they_can() -> None:
    """A body has a length and yields chunks."""
    assert isinstance(StreamedBody(), Body)
    assert not isinstance(b"", Body)


def test_a_reply_does_not_show_its_content() -> None:
    """Replies carry access tokens (room/getJoinToken), and may be 16 MiB long."""
    reply = Reply(200, ((b"Set-Cookie", b"session=hush"),), b'{"token": "eyJhbGciOi"}')
    assert "200" in repr(reply)
    assert "eyJhbGciOi" not in repr(reply)
    assert "hush" not in repr(reply)


def test_records_do_not_show_what_may_be_private() -> None:
    """Metadata, webhook addresses and raw replies stay out of logs."""
    reply = json.loads(json.dumps(REPLY).replace("de", "hush").replace("presenter", "hush"))
    active = ActiveRoom.from_reply("room01", reply)
    for value in (active, *active.participants, receipt(raw={"msg": "hush"})):
        assert "hush" not in repr(value)
    assert "(2 participants)" in repr(active)


# --- values --------------------------------------------------------------------------------------


def receipt(**changed: Any) -> UploadReceipt:
    """Make an example."""
    attempt = Attempt(1, 0.0, 0.5, "accepted", 200, "HTTP 200 (file uploaded successfully)", 9)
    facts: dict[str, Any] = {
        "room_id": "room01",
        "document": "deck.pdf",
        "size": 9,
        "msg": "file uploaded successfully",
        "status_code": "SUCCESS",
        "seconds": 0.5,
        "attempts": (attempt,),
        "raw": {},
    }
    return UploadReceipt(**facts | changed)


@pytest.mark.parametrize(
    "value",
    [
        Request("POST", "https://meet.example.com/auth/room/x", (), b""),
        Reply(200),
        SignedHeaders("devkey", "0123abcd"),
        receipt(),
        receipt().attempts[0],
        ActiveRoom.from_reply("room01", REPLY),
        Participant.from_reply(PERSON),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_are_frozen_values(value: Any) -> None:
    """They compare, hash and never change."""
    assert value == attrs.evolve(value)
    assert hash(value) == hash(attrs.evolve(value))
    for field in attrs.fields(type(value)):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, field.name, None)


def test_defaults() -> None:
    """A reply may be bare; an attempt of a JSON call has no document."""
    assert Reply(204) == Reply(204, (), b"")
    assert Attempt(1, 0.0, 0.5, "never sent", None, "refused").bytes_sent == 0
    assert Request("POST", "https://h/auth/x", (), b"").reply_timeout == 15.0


def test_signed_headers_do_not_pickle() -> None:
    """A signature of an upload is a lasting credential; it does not travel by accident."""
    with pytest.raises(TypeError, match="signature"):
        pickle.dumps(SignedHeaders("key", "0123abcd"))
