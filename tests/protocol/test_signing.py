"""Signatures, against vectors of an independent tool; and secrets that stay inside."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from meeting_async.errors import ConfigurationError
from meeting_async.signers import HmacSigner, SignedHeaders
from support.telling import containing, traceback_with_locals

SECRET = "s3cret-key"

# Each computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac SECRET
# (keys that are no text with -mac HMAC -macopt hexkey:...).
VECTORS: list[tuple[str | bytes, bytes, str]] = [
    (SECRET, b"room01", "971f33ad0b2630662929c978c3935e4079d20bf6cefcf11ab014bbfdd0510cbb"),
    (SECRET, "raum-ä".encode(), "2c34e43c1a01d1c181395636524f2f4b9c88b382e70c66aaea9c877861b6061b"),
    (
        SECRET,
        '{"title":"會議 \u2013 “Q”","room_id":"raum-ä","n":[1,2.5,null,true]}'.encode(),
        "f92013be02b194e0d44fec39f13d92793398e14ffc7d951ae4ac1f689e6e729a",
    ),
    (SECRET, b"{}", "761bc208b8a8880862a951b0a985f1c17675c73727e6add33b1a97377147f091"),
    (SECRET, b"", "03b5d47de6f8548b83940d24f99f8345cb156d953238ce3a1b7cb6ece090dcd5"),
    ("geheim-ü-鍵", b"room01", "b080249773cafcccfbcec852ffdc0928cdb3140427e54bbda47cd5c0d0a2eb81"),
    (
        b"\xff\x80\xfe\x01",
        b"room01",
        "889bec62920670bc6e3bced0251f99dd31778a2aef8413739563ecfb2ddd6b25",
    ),
    ("k" * 100, b"room01", "c439fd7348a3ac062c363a4e14d1208578bacb73f34dcef975746038e9d1379d"),
    (  # test case 2 of RFC 4231
        "Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
]


@pytest.mark.parametrize(("secret", "message", "signature"), VECTORS)
def test_golden_vectors(secret: str | bytes, message: bytes, signature: str) -> None:
    """Lowercase hexadecimal HMAC-SHA256 over the exact bytes; text counts as UTF-8."""
    signer = HmacSigner("devkey", secret)
    assert signer.sign(message) == SignedHeaders("devkey", signature)
    assert signer.verify(message, signature)
    if isinstance(secret, str):
        assert HmacSigner("devkey", secret.encode()).sign(message) == signer.sign(message)


@pytest.mark.parametrize("signature", ["", "971f33ad", VECTORS[0][2].upper(), "ä" * 64, "\udcff"])
def test_verify_refuses_everything_else(signature: str) -> None:
    """What a stranger sends makes it false, never an error."""
    assert HmacSigner("devkey", SECRET).verify(b"room01", signature) is False
    assert HmacSigner("devkey", "another").verify(b"room01", VECTORS[0][2]) is False


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("secret", [SECRET, SECRET.encode(), " s3 cret "])
def test_a_line_break_at_the_end_is_stripped_with_a_warning(secret: Any, ending: str) -> None:
    """It comes from reading a file; other blanks belong to the secret."""
    typed: Any = secret + (ending if isinstance(secret, str) else ending.encode())
    with pytest.warns(UserWarning, match="line break") as caught:
        signer = HmacSigner("devkey", typed)
    assert caught[0].filename == __file__
    assert signer.sign(b"m") == HmacSigner("devkey", secret).sign(b"m")


UNUSABLE = [
    *(("k", bad, ConfigurationError) for bad in ("", b"", "hush\0", b"hu\0sh", "hush\ud800")),
    *((bad, "hush", ConfigurationError) for bad in ("", "a b", "k\n", "k\r\nX: y", "k\0", "ü")),
    *(("k", bad, TypeError) for bad in (None, 5, bytearray(b"hush"), ["hush"])),
    *((bad, "hush", TypeError) for bad in (None, b"devkey", 5)),
]  # fmt: skip


@pytest.mark.parametrize(("key", "secret", "kind"), UNUSABLE)
def test_unusable_keys_and_secrets(key: Any, secret: Any, kind: type[Exception]) -> None:
    """Named, not shown: neither in the error nor in the local variables of a traceback."""
    with pytest.raises(kind) as caught:
        HmacSigner(key, secret)
    assert "hush" not in f"{caught.value} {caught.value!r}"
    assert "api_" in str(caught.value)
    assert containing(traceback_with_locals(caught.value), ["hush"]) == []


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value", [HmacSigner("k", "hush"), SignedHeaders("k", "hush"), [HmacSigner("k", "hush")]]
)
def test_what_holds_a_secret_prints_nothing_and_does_not_pickle(
    value: object, protocol: int
) -> None:
    """A log shows ``(hidden)``; a pickle on a disk or a queue would carry the secret."""
    assert "(hidden)" in repr(value)
    assert "hush" not in f"{value} {value!r}"
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(value, protocol)
