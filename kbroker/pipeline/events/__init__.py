"""Events of a website, simulated or from its access logs, into a topic."""
