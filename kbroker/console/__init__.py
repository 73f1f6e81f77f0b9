"""The web console: pages on which any Kafka is looked at and administered.

Owns what a browser sees. All that it knows comes of kbroker.admin, by Kafka's protocol; it knows nothing of the broker.
"""
