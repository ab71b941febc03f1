from tests.laws.effects import EFFECTS
from tests.laws.programs import Cell


def has_a_meaning(cell: Cell) -> bool:
    return len(cell.modes) < 2
