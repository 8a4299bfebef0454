# One target a recipe: `make hopper`, `make hopper SEEDS=0,1,2`, `make hopper SOURCE=d4rl` (D4RL's files, no simulation).
SEEDS ?= 0
SOURCE ?=
OBSERVATIONS := hopper walker2d halfcheetah ant antmaze antmaze-diverse kitchen
MISMATCHED := halfcheetah-short ant-disabled antmaze-pointmass
EXAMPLES := kettle microwave antmaze-examples
FROM = $(if $(SOURCE),-$(SOURCE))
RUN_RECIPE = $(SMODICE) run $< --seeds $(SEEDS) $(if $(SOURCE),--source $(SOURCE))

COMPARISON := pointmass-4direction hopper
SANITY := hopper-expert hopper-medium hopper-demodice
ABLATION := examples/pointmass-4direction observations/hopper observations/halfcheetah observations/walker2d observations/ant \
	stress/hopper-mixed stress/walker2d-mixed

.PHONY: $(OBSERVATIONS) $(MISMATCHED) $(EXAMPLES) comparison $(COMPARISON:%=comparison-%) sanity $(SANITY:%=sanity-%) ablation $(ABLATION:%=ablation-%)

$(OBSERVATIONS): %: pipelines/observations/%.toml setup
	$(RUN_RECIPE)

$(MISMATCHED): %: pipelines/mismatched/%.toml setup
	$(RUN_RECIPE)

# Data as people have them, each with what it is measured by: the value-free weights, plain cloning, and cloning by the labels.
# STRESS_ALGOS=bc,oracle,tailo,seabo,iql adds the peers of the literature.
STRESS_ALGOS ?= bc,oracle
STRESS := $(patsubst pipelines/stress/%.toml,%,$(wildcard pipelines/stress/*.toml))
STRESS_TOO := antmaze kitchen
STRESS_RUN = $(RUN_RECIPE) --variants pipelines/returns.toml --set eval.curve_episodes=0 \
	&& $(RUN_RECIPE) --algo $(STRESS_ALGOS) --set eval.curve_episodes=0

.PHONY: stress $(STRESS) $(STRESS_TOO:%=stress-%)
$(STRESS): %: pipelines/stress/%.toml setup
	$(STRESS_RUN)

$(STRESS_TOO:%=stress-%): stress-%: pipelines/observations/%.toml setup
	$(STRESS_RUN)

stress: $(STRESS) $(STRESS_TOO:%=stress-%)  ## data as labs have them, with bc, the value-free weights and an oracle beside (docs/stress.md)
	$(VENV)/bin/python benchmarks/tables.py stress --out runs/stress.md $(STRESS:%=runs/%$(FROM)) $(STRESS_TOO:%=runs/%$(FROM))

$(EXAMPLES): %: pipelines/examples/%.toml setup
	$(RUN_RECIPE)

hopper:  ## imitation from observations (paper 5.1)
walker2d:  ## the same
halfcheetah:  ## the same
ant:  ## the same
kitchen:  ## the same, Franka Kitchen; SOURCE=human takes kitchen-human.hdf5, a recording that you bring
kettle:  ## Franka Kitchen from success examples: move the kettle (paper 5.3)
microwave:  ## the same: open the microwave
halfcheetah-short:  ## HalfCheetah imitates a shorter one (paper 5.2)
ant-disabled:  ## Ant imitates one with shorter front legs (paper 5.2)
antmaze:  ## an ant finds its way through a U-maze, from observations (paper 5.1)
antmaze-diverse:  ## the same with half of the data walking backwards (paper, appendix)
antmaze-pointmass:  ## the same, imitating a point (paper 5.2)
antmaze-examples:  ## the same from 500 success states (paper 5.3)

# The paper's own budget: hours of one core a seed, to be left alone in the background; started again, it goes on where it was.
PUBLISHED := $(foreach task,pointmass hopper halfcheetah,published-$(task)-paper published-$(task)-official)

.PHONY: published $(PUBLISHED)
$(PUBLISHED): %: pipelines/published/%.toml setup
	$(RUN_RECIPE)

published: $(PUBLISHED)  ## --preset paper and --preset official, a million steps of V and of the policy (docs/published.md)

# Every algorithm that fits the data: SEEDS=0,1,2 is the paper's number. The run folders are not those of smodice alone.

$(COMPARISON:%=comparison-%): %: pipelines/comparison/%.toml setup
	$(RUN_RECIPE)

COMPARISON_TABLE = $(VENV)/bin/python benchmarks/tables.py comparison --out docs/comparison.md \
	$(COMPARISON:%=runs/comparison-%$(FROM)) $(SANITY:%=runs/%$(FROM))

comparison: $(COMPARISON:%=comparison-%)  ## SMODICE against its baselines on PointMass-4Direction and Hopper
	$(COMPARISON_TABLE)

$(SANITY:%=sanity-%): sanity-%: pipelines/sanity/%.toml setup
	$(RUN_RECIPE)

sanity: $(SANITY:%=sanity-%)  ## what each baseline should manage: bc on expert data, td3bc on medium data, demodice with its own dual
	$(COMPARISON_TABLE)

# Each setting changed alone, beside the recipe as it is, all of them with a quarter of its policy steps.
$(ABLATION:%=ablation-%): ablation-%: pipelines/%.toml setup
	$(RUN_RECIPE) --variants pipelines/ablation.toml --out runs/ablation-$(notdir $*)$(FROM) \
		--set policy.steps=5000 --set eval.curve_episodes=0

ablation: $(ABLATION:%=ablation-%)  ## the table of settings: R = 0, f, n, alpha, sampling, policy loss
	$(VENV)/bin/python benchmarks/tables.py ablation --out docs/ablation.md \
		$(foreach task,$(ABLATION),runs/ablation-$(notdir $(task))$(FROM))
