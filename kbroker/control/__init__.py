"""A test's tools for a broker, over HTTP: for tests in other languages than Python, and for the command line.

faults, clock, requests, topics, groups, snapshots  the operations, a module each
changes.py                                          the operations for the changes in kbroker/changes.py
known_*.py, subject.py                              the faults and snapshots that exist; the controlled broker
values.py, as_json.py                               JSON -> checked values; values of the broker -> JSON
document.py                                         the same operations as an OpenAPI document, and as a page
guard.py, application.py, server.py                 the checks of a request; HTTP; the thread that runs all of it
"""
