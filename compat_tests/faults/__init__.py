"""How clients react to faults: each fault of `broker.faults` against four clients, and real trouble on Apache Kafka."""
