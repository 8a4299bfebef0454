"""Where data come from: simulation and recorded files, all yielding blocks of whole episodes."""
