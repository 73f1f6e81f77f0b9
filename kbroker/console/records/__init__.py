"""Records on the pages: searching, following and writing them."""
