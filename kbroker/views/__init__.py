"""Filtered views: topics that show the records of other topics, as selected by a filter.

    opened_batch.py  a batch opened once for all filters: the records that a filter selects, the filtered batch
    dispatch.py      finds, among many filters, those that may select records of a batch
    scanned.py       the known facts about one filter in one partition: ranges without matches, the last match
    shared.py        filtered batches in memory, and the other things that all scans share
    source.py        the partition under its views: its bounds, and opened batches
    source_scan.py   the filters in use on one partition, and the scan of new batches, once for all of them
    last_matches.py  the search backwards for the last match of each filter
    reading.py       the reads of one partition by a consumer through a filter
    header_indexes.py  the indexes of headers of closed segments, with which scans skip blocks without matches
    hosted_views.py  the views of this broker: start here

A view stores nothing. It has the partitions, offsets and leaders of its source (cluster_state.py derives them). A
selection is the use of one filter on one partition. It is attached while new batches are scanned for it. A broker that
has a replica of the source answers for the view. Never answers a request: handlers/view_*.py do.
"""
