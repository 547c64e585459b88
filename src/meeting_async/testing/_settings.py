"""The settings of a meeting server: one frozen value that all its parts read."""

import attrs
from attrs.validators import gt, optional


@attrs.frozen(kw_only=True)
class Settings:
    """What a meeting server was configured with; sizes in bytes, times in seconds.

    ``max_size_whiteboard_file`` limits the document (equality is allowed), ``max_body_size`` the
    whole request body. Key and secret stay out of the repr.
    """

    api_key: str = attrs.field(repr=False)
    api_secret: str = attrs.field(repr=False)
    max_size_whiteboard_file: int = attrs.field(validator=gt(0))
    max_body_size: int = attrs.field(validator=gt(0))
    lock_seconds: float = attrs.field(validator=gt(0))
    processing_seconds: float = attrs.field(validator=attrs.validators.ge(0))
    reply_after: float | None = attrs.field(validator=optional(attrs.validators.ge(0)))
    keep_content: bool
