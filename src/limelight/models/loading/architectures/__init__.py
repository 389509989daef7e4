"""A file for each group of families: their configs and tensor names, translated to ours."""
