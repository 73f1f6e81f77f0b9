"""Filtered views: topics that show the records of another topic that a filter selects.

    opened_batch.py  a batch opened once for all filters; which records a filter selects; the batch without the others
    dispatch.py      which of many filters may select records of a batch
    scanned.py       what is known of one filter in one partition: ranges without matches, the last match
    shared.py        filtered batches in memory, and what else all scans share
    source.py        the partition under its views: its bounds, and opened batches
    source_scan.py   the filters in use on one partition, and the scan of new batches, once for all of them
    last_matches.py  the search backwards for the last match of each filter
    reading.py       what a consumer reads of one partition through a filter
    header_indexes.py  the indexes of headers of closed segments, by which scans pass over what cannot match
    hosted_views.py  the views of this broker: start here

A view stores nothing. Its partitions, offsets and leaders are those of its source (cluster_state.py derives them), and
a broker that has a replica of the source answers for the view. Never answers a request: handlers/view_*.py do.
"""
