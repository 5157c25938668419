"""Practice checks of choosing a recipe: what a rank sends in an update, a bound on the speedup, and a run's bill."""

from ..base import Part
from .bill import BILL
from .links import LINKS

PARTS = (
    Part("choosing_a_recipe.links", ("sent_per_update", "times_faster"), LINKS),
    Part("choosing_a_recipe.bill", ("bill",), BILL),
)
