"""Score test files with a saved model: in one process, or every trainer its share.

    python infer.py --model model --data D/test                                        one process
    fleetrun --server_num=1 --worker_num=2 infer.py --model model --data D/test        2 trainers, the same numbers

`sparsefleet infer model --data D/test --workers 2` does it without a script, and without servers.
"""

import argparse
import json

import sparsefleet as sf
from sparsefleet import fleet


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
    optimizer = fleet.distributed_optimizer(sf.optim.SGD())
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
    fleet.init_worker()
    model, schema = sf.saved_model(args.model)
    trainer = sf.Trainer(optimizer, threads=args.threads)
    trainer.load(model, args.model, values_only=True)
    files = fleet.split_files(sf.list_files(args.data))
    rows = sf.open_reader(files, schema, batch_size=args.batch_size)
    values = fleet.infer_from_dataset(model, rows)
    fleet.stop_worker()
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    sf.plain_errors()
    main()
