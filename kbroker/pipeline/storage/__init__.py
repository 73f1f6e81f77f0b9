"""Files and locks below one path, on this machine or where Hadoop reaches."""
