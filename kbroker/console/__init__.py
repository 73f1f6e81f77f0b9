"""The web console: pages to inspect and administer any Kafka cluster.

Owns everything that a browser sees. It gets all its data from kbroker.admin, through Kafka's protocol. It knows nothing
of the broker.
"""
