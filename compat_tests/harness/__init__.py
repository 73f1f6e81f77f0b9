"""What the side-by-side tests stand on: the real parts, both brokers as processes, and the comparison of what was seen.

Owns no scenario; those are in `compat_tests/clients` and `compat_tests/spark`.
"""
