"""What a layer does with its weights: declare, load, finish, apply."""
