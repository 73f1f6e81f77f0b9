"""The handlers with an authorizer: each behind a guard that asks the authorizer first.

Owns the rights that each API needs (required_rights.py, one table), and the guards. Never decides by itself:
security/authorizer does. Without an authorizer this package is not imported, and the handlers run unguarded.
"""

from kbroker.handlers.authorized.required_rights import guarded

__all__ = ["guarded"]
