"""The explorer: a local server and the web page that shows attention."""
