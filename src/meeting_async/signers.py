"""The default signer, and the protocol for a signer of your own."""

from meeting_async._models import SignedHeaders
from meeting_async._protocol.signing import HmacSigner, Signer

__all__ = ["HmacSigner", "SignedHeaders", "Signer"]
