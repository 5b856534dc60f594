"""The gates, one file each: gNN_name.py exports GATE."""
