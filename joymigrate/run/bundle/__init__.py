"""`bundle --offline`: everything that a machine without network needs, in one folder."""
