"""The broker process: connections, dispatch, handlers."""
