"""Schedule topics (`schedule.enable`): records that name the time at which they go to another topic.

Owns the language of their headers (language.py, with times.py and cron.py).
"""
