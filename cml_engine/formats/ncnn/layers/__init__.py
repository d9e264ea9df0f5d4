"""Converters of ncnn's layer types, a module per family; importing one fills the table."""
