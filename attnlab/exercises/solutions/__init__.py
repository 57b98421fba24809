"""A solution for each exercise, and the usual mistakes, one file a paper. Whoever wants to learn reads these last."""
