"""What is asked of any Kafka, by its protocol: connections, and questions with their answers.

Owns how a cluster is reached, what kafka-python lacks, and how errors read. Knows nothing of the broker, and never
prints: the command line and the console stand on it.
"""
