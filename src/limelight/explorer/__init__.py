"""The explorer: a local server and the page on which attention is looked at."""
