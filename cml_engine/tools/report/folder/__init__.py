"""The report folder of ``cml report``: all facts about a model, with a page to read them."""
