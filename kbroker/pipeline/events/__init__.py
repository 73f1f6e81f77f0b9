"""Events of a website, invented or from its access logs, into a topic."""
