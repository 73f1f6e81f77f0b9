"""The network side: listeners, connections, and the dispatch of frames to handlers."""
