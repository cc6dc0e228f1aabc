"""What workers run: training scripts, after each of which they leave its network, states and history in a folder.

``python -m tests.examples.distributed.job RUN ...``; a RUN is JSON: API, folder, options of the script.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from examples.common import loop
from examples.image_classification import settings, train_gluon, train_module

SCRIPTS = {"gluon": train_gluon, "module": train_module}


def main():
    for text in sys.argv[1:]:
        api, folder, args = json.loads(text)
        settings.run = functools.partial(run, Path(folder))
        SCRIPTS[api].main(args, standalone_mode=False)


def run(folder, learner, data, options, recorded, title, workers):
    history = loop.run(learner, data, options, recorded, title, workers)
    place = folder / f"rank{workers.rank}"
    learner.parts["net"].save_params(f"{place}.params")
    learner.parts["net"].save_states(f"{place}.states")
    steps = {name: values for name, values in history.steps.items() if name != "seconds"}
    Path(f"{place}.json").write_text(json.dumps(steps))
    return history


if __name__ == "__main__":
    main()
