"""Pictures that are larger than a network takes, in tiles that overlap."""
