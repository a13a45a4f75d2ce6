// The planted fault is in LAYERS: it lets a folder include one of a higher rank.
