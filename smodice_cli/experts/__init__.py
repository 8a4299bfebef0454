"""Training experts for the simulator, a tool beside the pipeline: its policies are what `sim:ENV@FILE` acts with."""
