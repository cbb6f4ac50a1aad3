"""What table and page both say in words."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.analysis.model import Comparison, Verdict
from labctl.analysis.words import listed, size_text
from labctl.base.wording import metric_title, share
from labctl.report.view import Scene, View


def native_gap(view: View) -> str:
    """What the difference between guest and native is made of (METHOD 3)."""
    if view.run.run.get("accelerator") == "tcg":
        return "emulation, not virtualization"
    if view.run.run.get("imported"):
        return "imported: what lies between them is not known"
    if view.run.run.get("same_kernel") is True:
        return "virtualization overhead"
    return "stack difference: two kernels"


def direction(view: View, scene: Scene) -> str:
    """The primary metric and which way is better; "" without one."""
    item = view.primary_comparison(scene)
    if item is None:
        return ""
    return f"judged by {metric_title(item.metric)}, {item.better} is better"


def intervals(view: View, scene: Scene) -> str:
    """How to read a change and its interval."""
    text = "Below each change stands its interval"
    primary = view.primary_comparison(scene)
    if primary is not None:
        text += f": {share(primary.confidence)} where a verdict stands"
        others = {
            item.confidence for item in view.comparisons(scene) if item.role is not primary.role
        }
        if others == {primary.confidence}:
            text += " and elsewhere"
        elif len(others) == 1:
            text += f", {share(others.pop())} elsewhere"
    text += "."
    if primary is not None and primary.margin is not None:
        text += f" Changes under {margin(primary)} do not matter to this study."
    return text


def calibrated(view: View, scene: Scene) -> Iterator[str]:
    """What a calibrated IPC is worth (METHOD 13)."""
    titles = view.column_titles(scene, view.columns(scene.workload))
    if any("(calibrated)" in title for title in titles):
        yield (
            "IPC (calibrated) comes from instructions per operation, counted once, and the time "
            "the vCPUs were busy: the throughput in another unit, no evidence of its own."
        )


def inconclusive(view: View, scene: Scene) -> Iterator[str]:
    """For each tuning without a clear answer, what it would have taken."""
    for tuning in view.candidates:
        for item in view.judged(scene, tuning):
            if item.verdict is not Verdict.INCONCLUSIVE or item.smallest_visible is None:
                continue
            text = (
                f"{tuning} is inconclusive: only effects over "
                f"{size_text(item.smallest_visible, item.kind, item.unit)} would have shown"
            )
            if item.blocks_needed is not None:
                text += f"; {margin(item)} would take {item.blocks_needed} blocks"
            yield f"{text}."


def left_out(view: View, scene: Scene) -> Iterator[str]:
    """For each tuning, the blocks that its comparison lacks."""
    for tuning in view.candidates:
        for item in view.judged(scene, tuning):
            if not item.left_out:
                continue
            noun, verb = ("block", "is") if len(item.left_out) == 1 else ("blocks", "are")
            which = listed([str(block) for block in item.left_out], 10)
            yield (
                f"{tuning}: {noun} {which} {verb} missing: a side has no valid value there, and "
                "none was made up."
            )


def margin(item: Comparison) -> str:
    if item.margin is None:
        return "the threshold"
    return size_text(item.margin, item.kind, item.unit)
