"""The chip-day kit: predictions sealed before a chip is seen, and what a chip made of them."""
