"""What a test can have of a broker, over HTTP: for tests that are not Python, and for the command line.

faults, clock, requests, topics, groups, snapshots  the operations, a module each
known_*.py, subject.py                              what was set and kept; the broker with which all is done
values.py, telling.py                               JSON -> checked values; values of the broker -> JSON
document.py, overview_page.py                       the same operations as an OpenAPI document, and as a page
guard.py, application.py, server.py                 who is let in; HTTP; the thread in which all of it runs
listen_address.py                                   where it listens; it alone is loaded where there is no server
"""
