"""Tests of kbroker/share_partition/."""
