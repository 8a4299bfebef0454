# One target a recipe: `make hopper`, `make hopper SEEDS=0,1,2`, `make hopper SOURCE=d4rl` (D4RL's files, no simulation).
SEEDS ?= 0
SOURCE ?=
OBSERVATIONS := hopper walker2d halfcheetah ant
MISMATCHED := halfcheetah-short ant-disabled
RUN_RECIPE = $(SMODICE) run $< --seeds $(SEEDS) $(if $(SOURCE),--source $(SOURCE))

.PHONY: $(OBSERVATIONS) $(MISMATCHED)

$(OBSERVATIONS): %: pipelines/observations/%.toml setup
	$(RUN_RECIPE)

$(MISMATCHED): %: pipelines/mismatched/%.toml setup
	$(RUN_RECIPE)

hopper:  ## imitation from observations (paper 5.1)
walker2d:  ## the same
halfcheetah:  ## the same
ant:  ## the same
halfcheetah-short:  ## HalfCheetah imitates a shorter one (paper 5.2)
ant-disabled:  ## Ant imitates one with shorter front legs (paper 5.2)
