"""Score test files with a saved model: in one process, or every trainer its share.

    python infer.py --model model --data D/test                                        one process
    fleetrun --server_num=1 --worker_num=2 infer.py --model model --data D/test        2 trainers, the same numbers

`sparsefleet infer model --data D/test --workers 2` does it without a script, and without servers.
"""

import argparse
import json

from sparsefleet import fleet, optim
from sparsefleet.checkpoint import Checkpoint, latest
from sparsefleet.core.errors import plain_errors
from sparsefleet.core.schema import Schema
from sparsefleet.data.files import list_files
from sparsefleet.data.open import open_reader
from sparsefleet.models import registry
from sparsefleet.train import Trainer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Score test files with a saved model.")
    parser.add_argument("--model", required=True, help="a checkpoint, or a run's folder: then its newest one")
    parser.add_argument("--data", required=True, help="folder of test files")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1, help="scoring threads of each trainer")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    fleet.init()
    # Nothing is trained: with SGD no row carries optimizer state.
    optimizer = fleet.distributed_optimizer(optim.SGD())
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    fleet.init_worker()
    saved = Checkpoint.open(latest(args.model)).manifest
    model = registry.build(saved.model)
    trainer = Trainer(optimizer, threads=args.threads)
    trainer.load(model, args.model, values_only=True)
    files = fleet.split_files(list_files(args.data))
    rows = open_reader(files, Schema.from_dict(saved.schema), batch_size=args.batch_size)
    values = fleet.infer_from_dataset(model, rows)
    fleet.stop_worker()
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    plain_errors()
    main()
