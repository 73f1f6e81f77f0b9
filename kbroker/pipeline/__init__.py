"""Jobs on Apache Spark for a broker's topics: archive, replay, and visits by day.

Owns all code that needs the extra `spark`. The jobs reach any Kafka cluster through Spark's own connector and a Kafka
client. They never import the broker. No module of this package is imported before a command of `kbroker pipeline` runs.
"""
