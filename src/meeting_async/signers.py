"""Signing requests: what to implement to fetch or rotate keys, and the default."""

from meeting_async._models import SignedHeaders
from meeting_async._protocol.signing import HmacSigner, Signer

__all__ = ["HmacSigner", "SignedHeaders", "Signer"]
