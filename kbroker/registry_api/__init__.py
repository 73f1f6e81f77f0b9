"""The REST API of the schema registry: an ASGI application, and its server."""
