"""The sample engine: rows of Parquet as features, each row read once, by any number of readers."""
