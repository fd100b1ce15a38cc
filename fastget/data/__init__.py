"""Which images there are: lists, data sets, protocols, the check, the packed cache."""
