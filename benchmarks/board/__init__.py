"""The board: public programs that others wrote, taken the whole way and classed by rule."""
