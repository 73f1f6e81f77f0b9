"""Fires the records of schedule topics: they go to their targets when they are due, each once.

For each partition of a schedule topic that is hosted here: index.py keeps what is pending, in a file that follows from
the log and can be rebuilt; reading.py reads the log for it; scheduled.py decides at the leader what fires, and writes
the marks (kbroker/schedules/marks.py); firing.py builds the records, delivery.py sends them; service.py has all
partitions of a broker. Never knows other brokers: broker/ passes the way to a target's leader.
"""
