"""The page: one HTML file that shows a recording."""
