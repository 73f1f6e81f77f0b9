"""Requests to any Kafka cluster, by Kafka's protocol: connections, requests, and their responses.

Owns the connection to a cluster, the requests that kafka-python lacks, and the texts of errors. Does not know the
broker's code, and never prints: the command line and the console build on this package.

A change that the command line, the console, the control API and the test kit all offer is a row of
`kbroker/changes.py`. Any other change is one function here that uses an admin client. That function returns only when
the change is visible. It returns refusals as data (`errors.Refusal`), or raises AdminError. A verb (`cli/<verb>.py`) or
an action of the console (`ACTIONS` of `console/pages/<subject>.py`) parses the arguments, calls the function and writes
the text of a success.
"""
