"""The handlers where an authorizer is configured: each behind a guard that asks it first.

Owns what each API asks for (required_rights.py, one table), and the guards. Never decides by itself:
security/authorizer does. Where no authorizer is configured nothing of this is imported, and the handlers run as they
are.
"""

from kbroker.handlers.authorized.required_rights import guarded

__all__ = ["guarded"]
