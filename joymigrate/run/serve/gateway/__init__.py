"""Two backends behind one address: ramp, evidence, rollback, failover and token-exact resume."""
