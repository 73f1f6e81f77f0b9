"""Requests to any Kafka cluster, through its protocol: connections, and questions with their answers.

Owns the connection to a cluster, requests that kafka-python lacks, and the texts of errors. Knows nothing of the
broker, and never prints: the command line and the console build on it.

A change that all surfaces offer is a row of `kbroker/changes.py`. Any other is one function here over an admin client:
it returns when the change is visible, with refusals as data (`errors.Refusal`), or raises AdminError. A verb
(`cli/<verb>.py`) and an action of the console (`ACTIONS` of `console/pages/<subject>.py`) add their arguments and the
text of a success, and call it.
"""
