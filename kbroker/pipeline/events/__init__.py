"""Events of a website, simulated or from its access logs, that are sent to a topic."""
