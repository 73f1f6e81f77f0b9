"""Files and locks below one path, on this machine or on Hadoop's file systems."""
