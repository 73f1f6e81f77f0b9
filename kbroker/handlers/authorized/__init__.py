"""The handlers of a broker with an authorizer: a guard before each handler asks the authorizer first.

Owns the rights that each API needs (the table in required_rights.py), and the guards. Never decides about rights:
security/authorizer decides. Without an authorizer this package is not imported, and the handlers run unguarded.
"""

from kbroker.handlers.authorized.required_rights import guarded

__all__ = ["guarded"]
