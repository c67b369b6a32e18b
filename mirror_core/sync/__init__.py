"""Everything but records: topics and their settings, access, groups' offsets, fences."""
