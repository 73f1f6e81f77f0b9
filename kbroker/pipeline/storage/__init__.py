"""Files and locks below one path, on this machine or on one of Hadoop's file systems."""
