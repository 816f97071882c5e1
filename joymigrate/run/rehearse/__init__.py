"""The rehearsal device: the vendor's own torch package on a simulated chip runtime."""
