"""The web console: pages to inspect and administer any Kafka cluster.

Owns everything that a browser displays. Gets all its data from kbroker.admin, through Kafka's protocol. Does not depend
on the broker.
"""
