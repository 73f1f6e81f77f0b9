"""The web console: pages to inspect and administer any Kafka cluster.

Owns everything that a browser sees. All its data comes from kbroker.admin, through Kafka's protocol; it knows nothing
of the broker.
"""
