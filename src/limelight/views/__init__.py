"""Pictures of a recording: terminal, figure, page."""
