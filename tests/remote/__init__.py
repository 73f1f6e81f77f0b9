"""Tests of kbroker/remote/."""
