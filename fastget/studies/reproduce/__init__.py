"""`fastget reproduce`: the paper's tables as recipes, run, and set beside what the paper prints."""
