"""Gridworlds as tables: the paper's two 9x9 tasks, any size, text maps, and vectorised random-policy data.

A cell is state row * width + column; walls are states that nothing enters. Actions are 0 up, 1 down, 2 left, 3 right;
the mismatched expert's are the four diagonals.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smodice_cli.errors import InputError
from smodice_cli.lazy import np, sparse

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
DIAGONAL_MOVES = ((-1, -1), (1, -1), (-1, 1), (1, 1))
WALL, START, GOAL, FREE = "#", "S", "G", ". "
CHUNK = 1 << 21  # transitions counted at a time, so that memory stays flat


@dataclass(frozen=True)
class Gridworld:
    """A grid with walls, start and absorbing goal cells; on a torus moves wrap around, else they stop at the edge."""

    walls: np.ndarray  # (height, width) of bool
    starts: tuple[int, ...]
    goals: tuple[int, ...]
    torus: bool = False
    noise: float = 0.1  # probability that the move is uniform over the four instead

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width."""
        return self.walls.shape[0], self.walls.shape[1]

    @property
    def n_states(self) -> int:
        """All cells, walls included."""
        return int(self.walls.size)

    @property
    def initial(self) -> np.ndarray:
        """mu_0: uniform over the start cells."""
        distribution = np.zeros(self.n_states)
        distribution[list(self.starts)] = 1.0 / len(self.starts)
        return distribution

    def successors(self, diagonal: bool = False) -> np.ndarray:
        """Where each noiseless move leads, (S, 4): into a wall or off the map stays, goals absorb."""
        height, width = self.shape
        row, column = np.divmod(np.arange(self.n_states), width)
        moves = np.array(DIAGONAL_MOVES if diagonal else MOVES)
        rows, columns = row[:, None] + moves[:, 0], column[:, None] + moves[:, 1]
        if self.torus:
            rows, columns = rows % height, columns % width
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        target = np.where(inside, rows * width + columns, 0)
        own = np.arange(self.n_states)[:, None]
        target = np.where(inside & ~self.walls.ravel()[target], target, own)
        target[list(self.goals)] = np.array(self.goals)[:, None]
        return target

    def transition(self, diagonal: bool = False) -> sparse.csr_array:
        """T(s'|s,a) as a sparse (S * 4, S) matrix."""
        target = self.successors(diagonal)
        states, actions = target.shape
        rows = np.arange(target.size)

        def likely(chance: float, row: np.ndarray, cell: np.ndarray) -> sparse.csr_array:
            return sparse.csr_array((np.full(row.size, chance), (row, cell.ravel())), shape=(rows.size, states))

        slips = likely(self.noise / actions, np.repeat(rows, actions), np.repeat(target, actions, axis=0))
        matrix = sparse.csr_array(likely(1.0 - self.noise, rows, target) + slips)
        matrix.eliminate_zeros()
        return matrix

    def distance_to_goal(self, diagonal: bool = False) -> np.ndarray:
        """Noiseless moves to the nearest goal, (S,); infinite where there is no path."""
        return self._distances(self.goals, self.successors(diagonal), backwards=True)

    def reachable_cells(self) -> np.ndarray:
        """The cells, goals excepted, that moves can reach from the starts."""
        reached = np.isfinite(self._distances(self.starts, self.successors()))
        return np.setdiff1d(np.flatnonzero(reached), self.goals)

    def _distances(self, cells: tuple[int, ...], target: np.ndarray, *, backwards: bool = False) -> np.ndarray:
        """Moves from the nearest of these cells to every other, or the other way round."""
        edges = (np.repeat(np.arange(self.n_states), target.shape[1]), target.ravel())
        places = edges[::-1] if backwards else edges
        graph = sparse.csr_array((np.ones(target.size), places), shape=(self.n_states, self.n_states))
        return sparse.csgraph.dijkstra(graph, indices=list(cells), unweighted=True, min_only=True)

    def expert_policy(self, diagonal: bool = True) -> np.ndarray:
        """A shortest-path policy (S, 4); uniform where no move comes closer."""
        distance = self.distance_to_goal(diagonal)
        if not np.isfinite(distance[list(self.starts)]).all():
            raise InputError("the expert's diagonal moves cannot reach the goal from the start on this map")
        after = distance[self.successors(diagonal)]
        closer = after.min(axis=1) < distance
        policy = np.full(after.shape, 1.0 / after.shape[1])
        policy[closer] = np.eye(after.shape[1])[after[closer].argmin(axis=1)]
        return policy

    def greedy_path(self, policy: np.ndarray, diagonal: bool = False) -> list[int]:
        """Cells from the first start under the most probable actions without noise, until a goal or a repeated cell."""
        target = self.successors(diagonal)
        path = [self.starts[0]]
        seen = set(path)
        while path[-1] not in self.goals:
            following = int(target[path[-1], policy[path[-1]].argmax()])
            if following in seen:
                break
            path.append(following)
            seen.add(following)
        return path


def paper_grid(size: int = 9, noise: float = 0.1) -> Gridworld:
    """The paper's torus: start (2, 2), goal (6, 6) on 9x9, the same proportions on other sizes."""
    near, far = size // 4, (3 * (size - 1)) // 4
    walls = np.zeros((size, size), dtype=bool)
    return Gridworld(walls, (near * size + near,), (far * size + far,), torus=True, noise=noise)


def read_map(path: Path, noise: float = 0.1, torus: bool = False) -> Gridworld:
    """A gridworld from a text file: `#` wall, `S` start, `G` success, `.` or space free."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a text map") from error
    return parse_map(text, str(path), noise, torus)


def parse_map(text: str, name: str = "the map", noise: float = 0.1, torus: bool = False) -> Gridworld:
    """A gridworld from the text of a map; says in which line something is wrong."""
    lines = text.rstrip().splitlines()
    if not lines:
        raise InputError(f"{name} is empty", "a map is rows of # (wall), S (start), G (success) and . (free)")
    for number, line in enumerate(lines, 1):
        unknown = sorted(set(line) - set(WALL + START + GOAL + FREE))
        if unknown:
            raise InputError(
                f"{name}, line {number}: unknown character {unknown[0]!r}", "use # (wall), S, G, . or space (free)"
            )
        if len(line) != len(lines[0]):
            raise InputError(f"{name}, line {number} has {len(line)} cells, line 1 has {len(lines[0])}")
    cells = np.array([list(line) for line in lines])
    starts, goals = (tuple(int(i) for i in np.flatnonzero(cells == mark)) for mark in (START, GOAL))
    if not starts:
        raise InputError(f"{name} has no start", "mark at least one cell with S")
    if not goals:
        raise InputError(f"{name} has no goal", "mark at least one success cell with G")
    grid = Gridworld(cells == WALL, starts, goals, torus, noise)
    if not np.isfinite(grid.distance_to_goal()[list(starts)]).all():
        raise InputError(f"{name} has no path from the start to the goal")
    return grid


def collect(grid: Gridworld, episodes: int, horizon: int, seed: int, anywhere: bool = False) -> sparse.csr_array:
    """Counts n(s, a, s') as a sparse (S * 4, S) array from a uniformly random policy, all episodes in step.

    Episodes begin at the start cells or, with `anywhere`, at any cell the start is connected to except goals.
    """
    generator = np.random.default_rng(seed)
    target = grid.successors()
    states, actions = target.shape
    cells = grid.reachable_cells() if anywhere else np.array(grid.starts)
    state = generator.choice(cells, size=episodes)
    total = sparse.csr_array((states * actions, states), dtype=np.int64)
    keys: list[np.ndarray] = []
    for step in range(horizon):
        action = generator.integers(actions, size=episodes)
        slip = generator.random(episodes) < grid.noise
        moved = np.where(slip, generator.integers(actions, size=episodes), action)
        following = target[state, moved]
        keys.append((state * actions + action) * states + following)
        state = following
        if len(keys) * episodes >= CHUNK or step == horizon - 1:
            pair, times = np.unique(np.concatenate(keys), return_counts=True)
            total = total + sparse.csr_array((times, np.divmod(pair, states)), shape=total.shape)
            keys = []
    return sparse.csr_array(total)
