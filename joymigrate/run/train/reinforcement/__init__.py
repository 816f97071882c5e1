"""Reinforcement learning: rollouts, rewards, and the loss of a group of answers."""
