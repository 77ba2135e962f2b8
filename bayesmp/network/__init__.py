"""A network: its graph, its weights as one vector, what is believed about them, its files."""
