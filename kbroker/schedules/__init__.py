"""Schedule topics (`schedule.enable`): records that name the time at which they are delivered to another topic.

Owns the language of their headers (language.py, with times.py and cron.py), the rules for targets (targets.py), the
check of produced records (produce_check.py), the form of the leader's marks (marks.py), and the replay of a log for
verbs and the console (pending.py). kbroker/scheduling/ delivers the due records.
"""
