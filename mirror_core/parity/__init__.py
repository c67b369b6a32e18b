"""Do both sides hold the same? What can be compared, comparing it, saving what only one side has."""
