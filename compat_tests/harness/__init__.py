"""What the side-by-side tests are built on: the real parts, both brokers as processes, and the comparison.

Owns no scenario; those are in `compat_tests/clients` and `compat_tests/spark`.
"""
