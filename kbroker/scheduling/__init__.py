"""Fires the records of schedule topics: delivers each record once to its target, when it is due.

These modules handle each partition of a schedule topic that this broker hosts. index.py stores the pending records, in
a file that can be rebuilt from the log, and reading.py reads the log for it. At the leader, scheduled.py decides which
records fire, and writes the marks (kbroker/schedules/marks.py). firing.py builds the records, and delivery.py sends
them. service.py has all partitions of a broker. Never knows other brokers: broker/ passes the function that sends to a
target's leader.
"""
