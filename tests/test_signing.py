"""Signatures, against vectors of an independent tool."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import pytest

import meeting_async._signing as signing
from meeting_async._records import SignedHeaders
from meeting_async._signing import HmacSigner, Signer, hidden
from meeting_async.errors import ConfigurationError

SECRET = "s3cret-key"

# Each computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac SECRET
# (OpenSSL 3.0; keys that are no text with -mac HMAC -macopt hexkey:ff80fe01 and hexkey:eda080).
OPENSSL_VECTORS: list[tuple[str | bytes, bytes, str]] = [
    (SECRET, b"room01", "971f33ad0b2630662929c978c3935e4079d20bf6cefcf11ab014bbfdd0510cbb"),
    (
        SECRET,
        "raum-ä".encode(),
        "2c34e43c1a01d1c181395636524f2f4b9c88b382e70c66aaea9c877861b6061b",
    ),
    (
        SECRET,
        b'{"room_id":"room01"}',
        "fd8a8c1f95a453b69a4458a2ebe6836a0941c77b0f4cc3d6b17779e0641e22be",
    ),
    (
        SECRET,
        '{"title":"會議 \u2013 “Q”","room_id":"raum-ä","n":[1,2.5,null,true]}'.encode(),
        "f92013be02b194e0d44fec39f13d92793398e14ffc7d951ae4ac1f689e6e729a",
    ),
    (SECRET, b"{}", "761bc208b8a8880862a951b0a985f1c17675c73727e6add33b1a97377147f091"),
    (SECRET, b"", "03b5d47de6f8548b83940d24f99f8345cb156d953238ce3a1b7cb6ece090dcd5"),
    (
        SECRET,
        b"\x00\xff\r\n",
        "a94301b812183ac64053fbc8edda7d0506ee222b079b41f3617fb23fc9052c49",
    ),
    (
        "geheim-ü-鍵",
        b"room01",
        "b080249773cafcccfbcec852ffdc0928cdb3140427e54bbda47cd5c0d0a2eb81",
    ),
    (
        b"\xff\x80\xfe\x01",
        b"room01",
        "889bec62920670bc6e3bced0251f99dd31778a2aef8413739563ecfb2ddd6b25",
    ),
    # Bytes that look like half of a character are bytes all the same.
    (
        b"\xed\xa0\x80",
        b"room01",
        "5fdd8f9b314eeeee1ff2fa6d55f3bd9a576c37e26457a1a3ceb05f0cbc242960",
    ),
    ("k" * 100, b"room01", "c439fd7348a3ac062c363a4e14d1208578bacb73f34dcef975746038e9d1379d"),
    # Also test case 2 of RFC 4231.
    (
        "Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
]


@pytest.mark.parametrize(("secret", "message", "signature"), OPENSSL_VECTORS)
def test_golden_vectors(secret: str | bytes, message: bytes, signature: str) -> None:
    """The signature is openssl's, in lowercase hexadecimal, beside the unchanged key."""
    signer = HmacSigner("devkey", secret)
    assert signer.sign(message) == SignedHeaders("devkey", signature)
    assert signer.verify(message, signature)


def test_text_and_bytes_of_a_secret_are_the_same() -> None:
    """Text counts as its UTF-8 bytes."""
    for secret in (SECRET, "geheim-ü-鍵"):
        assert HmacSigner("k", secret).sign(b"m") == HmacSigner("k", secret.encode()).sign(b"m")


def test_the_message_is_taken_as_it_is() -> None:
    """Blanks, line breaks and key order all count; nothing is normalised."""
    signer = HmacSigner("devkey", SECRET)
    messages = [b'{"a":1,"b":2}', b'{"b":2,"a":1}', b'{"a": 1,"b":2}', b'{"a":1,"b":2}\n', b""]
    assert len({signer.sign(message).signature for message in messages}) == len(messages)


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "971f33ad",
        "971F33AD0B2630662929C978C3935E4079D20BF6CEFCF11AB014BBFDD0510CBB",
        "971f33ad0b2630662929c978c3935e4079d20bf6cefcf11ab014bbfdd0510cbb\n",
        "071f33ad0b2630662929c978c3935e4079d20bf6cefcf11ab014bbfdd0510cbb",
        "ä" * 64,
        "\uff1971f33ad0b2630662929c978c3935e4079d20bf6cefcf11ab014bbfdd0510cbb",
        "\udcff" * 64,
    ],
    ids=lambda signature: ascii(signature)[:16],
)
def test_verify_refuses_everything_else(signature: str) -> None:
    """What a stranger sends makes it false, never an error (headers may hold surrogates)."""
    assert HmacSigner("devkey", SECRET).verify(b"room01", signature) is False


def test_verify_refuses_another_message_and_another_key() -> None:
    """A signature is for one message and one secret."""
    signature = HmacSigner("devkey", SECRET).sign(b"room01").signature
    assert not HmacSigner("devkey", SECRET).verify(b"room02", signature)
    assert not HmacSigner("devkey", "another").verify(b"room01", signature)


# --- unusable keys and secrets -------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", "\n\n"])
@pytest.mark.parametrize("encode", [False, True])
def test_trailing_line_break_is_stripped_with_a_warning(ending: str, encode: bool) -> None:
    """It usually comes from reading a file; the warning points at the caller."""
    text = SECRET + ending
    with pytest.warns(UserWarning, match="line break") as caught:
        signer = HmacSigner("devkey", text.encode() if encode else text)
    assert caught[0].filename == __file__
    assert SECRET not in str(caught[0].message)
    assert signer.sign(b"room01") == HmacSigner("devkey", SECRET).sign(b"room01")


@pytest.mark.parametrize("secret", [" s3cret", "s3cret ", "\ns3cret", "s3\ncret", "\ts"])
def test_other_blanks_belong_to_the_secret(secret: str) -> None:
    """Only a line break at the end is an accident for sure, and nothing else goes with it."""
    with pytest.warns(UserWarning, match="line break"):
        signer = HmacSigner("devkey", f"{secret}\n")
    assert signer.sign(b"room01") == HmacSigner("devkey", secret).sign(b"room01")
    bare = HmacSigner("devkey", "".join(secret.split())).sign(b"room01")
    assert HmacSigner("devkey", secret).sign(b"room01") != bare


@pytest.mark.parametrize("secret", ["", b"", "hush\0", b"\0hush", "hu\0sh"])
def test_empty_and_nul_secrets_are_refused(secret: str | bytes) -> None:
    """They come from an unset variable or a broken file, and would sign nothing right."""
    with pytest.raises(ConfigurationError) as caught:
        HmacSigner("devkey", secret)
    assert caught.value.field == "api_secret"
    assert caught.value.value == ("(hidden)" if secret else "nothing")
    assert "hush" not in repr(caught.value) + str(caught.value)


def test_a_secret_of_line_breaks_is_empty() -> None:
    """Stripping comes first."""
    with pytest.warns(UserWarning, match="line break"), pytest.raises(ConfigurationError):
        HmacSigner("devkey", "\n")


def test_a_secret_that_is_no_unicode_text_is_refused_like_the_others() -> None:
    """A lone surrogate has no bytes that could be a key."""
    with pytest.raises(ConfigurationError) as caught:
        HmacSigner("devkey", "hush\ud800")
    assert caught.value.field == "api_secret"
    assert "hush" not in repr(caught.value) + str(caught.value)


@pytest.mark.parametrize("secret", [None, 5, bytearray(b"hush"), ["hush"]])
def test_a_secret_is_text_or_bytes(secret: Any) -> None:
    """The type is named, not the value."""
    with pytest.raises(TypeError, match="api_secret must be str or bytes") as caught:
        HmacSigner("devkey", secret)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "dev key", "devkey\n", "devkey\r\nX: y", "d\0", "schlüssel"])
def test_unusable_keys_are_refused(key: str) -> None:
    """The key stands in a header, so it is printable ASCII."""
    with pytest.raises(ConfigurationError) as caught:
        HmacSigner(key, SECRET)
    assert caught.value.field == "api_key"
    assert caught.value.value == ("(hidden)" if key else "nothing")
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("key", [None, b"devkey", 5])
def test_a_key_is_text(key: Any) -> None:
    """The type is named."""
    with pytest.raises(TypeError, match="api_key must be a str"):
        HmacSigner(key, SECRET)


# --- secrets stay inside -------------------------------------------------------------------------


def test_repr_reveals_no_secret() -> None:
    """Neither the secret nor a part of it."""
    assert repr(HmacSigner("devkey", "hush")) == "HmacSigner('devkey', (hidden))"
    assert str(HmacSigner("devkey", b"hush")) == "HmacSigner('devkey', (hidden))"


def test_a_hidden_secret_is_a_secret_that_does_not_show() -> None:
    """Bytes in all but the look of them; what is no secret stays what it is."""
    secret = hidden("geheim-ü")
    assert secret == hidden("geheim-ü".encode()) == "geheim-ü".encode()
    assert {repr(secret), str(secret), f"{secret}", f"{secret!r}"} == {"(hidden)"}
    assert repr({"api_secret": [secret]}) == "{'api_secret': [(hidden)]}"
    assert HmacSigner("k", secret).sign(b"m") == HmacSigner("k", "geheim-ü").sign(b"m")
    assert hidden(None) is None


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_signers_do_not_pickle(protocol: int) -> None:
    """A pickle on a disk or a queue would carry the secret."""
    with pytest.raises(TypeError, match="does not pickle") as caught:
        pickle.dumps(HmacSigner("devkey", "hush"), protocol)
    assert "hush" not in str(caught.value)


def library_locals(error: BaseException) -> str:
    """Return what error reporters show of this module's frames: their local variables."""
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    frames = [frame for frame in report.stack if frame.filename == signing.__file__]
    assert frames
    return repr([frame.locals for frame in frames])


@pytest.mark.parametrize("secret", ["hush\0", b"hush\0"])
def test_locals_of_a_refusal_show_no_secret(secret: str | bytes) -> None:
    """Error reporters send the local variables of each frame along."""
    with pytest.raises(ConfigurationError) as caught:
        HmacSigner("devkey", secret)
    assert "hush" not in library_locals(caught.value)


@pytest.mark.parametrize(
    ("key", "secret"), [("devkey", bytearray(b"hush")), (b"devkey", "hush"), (None, b"hush")]
)
def test_locals_of_a_wrong_type_show_no_secret(key: Any, secret: Any) -> None:
    """A ``bytearray`` holds a real secret, too, as does what stands beside a wrong key."""
    with pytest.raises(TypeError) as caught:
        HmacSigner(key, secret)
    assert "hush" not in library_locals(caught.value)


@pytest.mark.filterwarnings("error")
def test_locals_of_the_warning_show_no_secret() -> None:
    """With warnings as errors the warning is an exception, and here the secret is a real one."""
    with pytest.raises(UserWarning) as caught:
        HmacSigner("devkey", "hush\n")
    assert "hush" not in library_locals(caught.value)


# --- the protocol --------------------------------------------------------------------------------


def test_signers_of_ones_own() -> None:
    """Whatever has ``sign`` is a signer, sync or async."""

    class Remote:
        async def sign(self, message: bytes, /) -> SignedHeaders:
            return SignedHeaders("devkey", message.hex())

    signers: list[Signer] = [HmacSigner("devkey", SECRET), Remote()]
    assert all(isinstance(signer, Signer) for signer in signers)
    assert not isinstance(object(), Signer)
