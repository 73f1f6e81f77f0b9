"""Records on the pages: which ones are looked for, how far a look goes, and what is written."""
