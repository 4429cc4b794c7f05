"""What the arguments of `fedlab compute` and `fedlab run` ask for: values of parameters, presets, notebooks."""

import argparse
from typing import NoReturn

from fedlab_lite.papers import cluster, notebooks, presets, results, variants
from fedlab_lite.util import InputError, choose, files
from fedlab_lite.util.progress import switched_on
from fedlab_lite.util.text import plain


class Parser(argparse.ArgumentParser):
    """A parser whose errors repeat what was typed without characters that a terminal would obey."""

    def error(self, message: str) -> NoReturn:
        super().error(plain(message))


def preset_of(args: argparse.Namespace, values: dict, takes: bool = True) -> tuple[str | None, dict]:
    """Separate the preset from the other values; `-p preset laptop` means the same as `--preset laptop`."""
    if "preset" not in values or not takes:
        return args.preset, values
    if args.preset not in (None, values["preset"]):
        raise InputError(f"--preset {args.preset} and -p preset {values['preset']} differ; set only one of them")
    choose("preset", values["preset"], presets.PRESETS)
    return values["preset"], {name: value for name, value in values.items() if name != "preset"}


def jobs(args: argparse.Namespace) -> list[cluster.Job]:
    """The notebooks to run with their presets and parameters, checked before anything is computed."""
    if args.committed:
        found = results.committed()
    else:
        found = dict.fromkeys(presets.headlines() if args.headline else presets.items(args.pattern, presets.ALL))
    if not found:
        raise InputError(f"no results in {files.figures_dir()}; {files.or_clone('run a notebook first')}")
    given, asked = variants.parsed(args.parameter), []
    committing = args.commit or switched_on("FEDLAB_COMMIT")
    for item, result in found.items():
        file = notebooks.path(item)
        preset, values = preset_of(args, given, "preset" in notebooks.parameters(file))
        preset = preset or (result["preset"] if result else "quick")
        own = values
        if result:
            known = notebooks.rules(file, result["parameters"] | {"preset": preset}).keys() - {"preset"}
            values = {k: v for k, v in result["parameters"].items() if k in known and v is not None} | values
        notebooks.check_parameters(file, notebooks.with_preset(file, preset, values))
        if committing and (changed := ", ".join(notebooks.changed(item, preset, own))):
            advice = "leave out --commit, or unset FEDLAB_COMMIT"
            raise InputError(f"{item}: {changed} would replace the preset's in a committed figure; {advice}")
        asked.append((item, preset, values))
    return asked
