"""One file a group of families: their configs and tensor names in our words."""
