"""The language in which records are filtered: `kbroker consume --filter`, and the console's search.

    filtering.py    compile_filter, Filter: start here
    tokens.py       FilterError, the words of the language, the limits of an expression
    expressions.py  an expression as a tree
    parser.py       text -> tree; literals.py reads numbers, dates and patterns
    compiling.py    tree -> a function of a record
    operands.py     the fields of a record, JSON documents, numbers
    patterns.py     LIKE
    prefilter.py    tree -> bytes that a batch with a match contains

Imports no other package of kbroker, so that both the broker and its clients can use it.
"""
