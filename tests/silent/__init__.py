"""What once passed in silence, as a user meets it: by commands and files alone, so that older revisions can be asked too.

`python -m tests.before REV` runs these on another revision (see there): nothing here may import what is new.
"""
