"""Fires the records of schedule topics: delivers each record once to its target, when it is due.

These modules handle each partition of a schedule topic that this broker hosts. index.py stores the pending records, one
row for each, in a file that can be rebuilt from the log. A lane is the queue of the rows for one target. reading.py
reads the log for the index. At the leader, scheduled.py decides which records fire, and writes the marks
(kbroker/schedules/marks.py). A mark that announces a batch is an intent. firing.py builds the batch of an intent, and
delivery.py sends it. service.py has all partitions of a broker. Never knows other brokers: broker/ passes the function
that sends to a target's leader.
"""
