"""Jobs on Apache Spark around a broker: archive, replay, and the day's visits.

Owns everything that needs the extra `spark`. The jobs reach any Kafka through Spark's own connector and a Kafka client;
they never import the broker. Nothing here is imported before a command of `kbroker pipeline` runs.
"""
