"""All that is known of a model in one folder with one page: ``cml report``."""
