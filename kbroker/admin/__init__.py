"""Requests to any Kafka cluster, through its protocol: connections, and questions with their answers.

Owns how to reach a cluster, what kafka-python lacks, and how errors read. Knows nothing of the broker, and never
prints: the command line and the console build on it.
"""
