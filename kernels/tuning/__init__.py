"""`fastget tune`: what is tried, and how it is measured. A table that was kept is used by fastget/methods/tuned.py."""
