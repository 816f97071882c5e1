"""The parts of a journey's report: figures with their evidence, sentences, pictures, provenance."""
