"""What a test can have of an embedded broker beside its service: misbehaviour, a look at what was asked, the time."""
