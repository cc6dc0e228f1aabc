"""What workers run: a training script, after which each leaves its network, states and history in a folder.

``python -m tests.examples.distributed.job API FOLDER [options of the script]``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from examples.common import loop
from examples.image_classification import settings, train_gluon, train_module

SCRIPTS = {"gluon": train_gluon, "module": train_module}


def main():
    api, folder, *args = sys.argv[1:]

    def run(learner, data, options, recorded, title, workers):
        history = loop.run(learner, data, options, recorded, title, workers)
        place = Path(folder) / f"rank{workers.rank}"
        learner.parts["net"].save_params(f"{place}.params")
        learner.parts["net"].save_states(f"{place}.states")
        steps = {name: values for name, values in history.steps.items() if name != "seconds"}
        Path(f"{place}.json").write_text(json.dumps(steps))
        return history

    settings.run = run
    SCRIPTS[api].main(args)


if __name__ == "__main__":
    main()
