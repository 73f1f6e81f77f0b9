"""What clients make of faults: each fault of `broker.faults` against four clients, and reality on Apache Kafka."""
