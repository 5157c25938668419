"""Practice checks of choosing a recipe: the bytes that a rank sends in an update, and a bound on the speedup."""

from ..base import Part
from .links import LINKS

PARTS = (Part("choosing_a_recipe.links", ("sent_per_update", "times_faster"), LINKS),)
