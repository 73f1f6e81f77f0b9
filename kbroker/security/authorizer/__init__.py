"""Who may do what: access control lists and what they come to (Apache Kafka's StandardAuthorizer)."""
