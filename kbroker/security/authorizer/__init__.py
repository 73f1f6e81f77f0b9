"""Authorization: access control lists and their evaluation (Apache Kafka's StandardAuthorizer)."""
