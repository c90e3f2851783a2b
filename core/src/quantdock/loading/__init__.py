"""Reading tensors into layers: one layer at a time, every tensor accounted for."""
