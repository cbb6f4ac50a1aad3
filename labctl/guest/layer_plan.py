"""Say what of a recipe's image would be made, without making it."""

from __future__ import annotations

from dataclasses import dataclass

from labctl.base.paths import StatePaths
from labctl.guest import images
from labctl.guest.layer import Layer
from labctl.guest.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """Describe a layer that a run's image needs: `is_built` already, or its base at least."""

    image: str
    layer: Layer
    is_built: bool
    is_base_built: bool

    @property
    def says(self) -> str:
        """Return it as a sentence."""
        added = f"the image '{self.image}' with {self.layer.says}"
        if self.is_built:
            return f"{added}: built already."
        first = "" if self.is_base_built else f", after '{self.image}' itself"
        return f"{added}: is made first{first}."


def layer_plan(recipe: Recipe, places: StatePaths) -> LayerPlan | None:
    """Return what a run with that recipe's image would add to which; None without a layer."""
    if recipe.layer is None:
        return None
    layered = recipe.with_kernel(None)
    base = layered.below
    assert base is not None
    return LayerPlan(
        image=recipe.name,
        layer=recipe.layer,
        is_built=images.find(layered, places) is not None,
        is_base_built=images.find(base, places) is not None,
    )
