"""Programs: plans on a device with their pipelines and memory, and the code that runs them."""
