"""Evidence: is a document in a session? What can be plugged in, and what plugNmeet-server shows."""

from meeting_async._delivery.evidence import Answer, Evidence, Finding, Send, Sought, StoredFiles

__all__ = ["Answer", "Evidence", "Finding", "Send", "Sought", "StoredFiles"]
