"""CTR-DNN with one script for one process, several processes, or a cluster.

python train.py --data D/train --test-data D/test                                         one process
fleetrun --server_num=2 --worker_num=2 train.py --data D/train --test-data D/test         2 servers, 2 trainers
"""

import argparse
import json
import logging

import torch

import sparsefleet as sf
from sparsefleet import fleet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train CTR-DNN on one machine or on many.")
    parser.add_argument("--data", required=True, help="folder of training files")
    parser.add_argument("--test-data", help="folder of test files, scored by all trainers together")
    parser.add_argument("--mode", default="async", help="sync, half_async, async or geo")
    parser.add_argument("--reader", default="queue", help="queue, memory, pyreader or feeder")
    parser.add_argument("--optimizer", default="adam", help=", ".join(sf.optim.RULES))
    parser.add_argument("--learning-rate", type=float, default=None, help="default: the rule's usual one")
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1, help="training threads of each trainer")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--model", help="checkpoint to start from: incremental training")
    parser.add_argument("--save", help="where to save the model")
    parser.add_argument("--bundle", help="where to put what serving needs: sparsefleet serve BUNDLE")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of silence after which a peer is lost")
    parser.add_argument(
        "--connect-timeout", type=float, default=120.0, help="seconds to wait for servers, and for trainers to register"
    )
    return parser.parse_args()


def main() -> None:
    args = arguments()
    fleet.init()
    # Gradients are sums over the rows of an update: in sync over all trainers' batches.
    joint = args.batch_size * (fleet.worker_num() if args.mode == "sync" else 1)
    usual = sf.optim.usual_rate(args.optimizer, joint)
    rate = usual if args.learning_rate is None else args.learning_rate
    strategy = fleet.DistributedStrategy(mode=args.mode, timeout=args.timeout, connect_timeout=args.connect_timeout)
    optimizer = fleet.distributed_optimizer(sf.optim.by_name(args.optimizer, rate), strategy)
    if fleet.is_server():
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")  # who comes and goes
        fleet.init_server(args.model)
        fleet.run_server()
    fleet.init_worker()
    torch.manual_seed(0)
    model = sf.CTRDNN()
    trainer = sf.Trainer(optimizer, threads=args.threads)
    if args.model and fleet.server_num() == 0:
        trainer.load(model, args.model)
    schema = sf.schema_beside(args.data)  # what `sparsefleet data prepare` wrote, or Criteo's usual constants
    rows = sf.open_reader(
        fleet.split_files(sf.list_files(args.data)), schema, kind=args.reader, batch_size=args.batch_size
    )
    test = None
    if args.test_data:
        test = sf.open_reader(fleet.split_files(sf.list_files(args.test_data)), schema, batch_size=1000)
    result = trainer.fit(model, rows, args.epochs, test=test)
    # Metrics are of all trainers; rows and time are each one's own, until those who are left put them together.
    parts = trainer.crew.reduce("result", {"rows": result.rows, "seconds": result.seconds})
    trained, seconds = sum(part["rows"] for part in parts), max(part["seconds"] for part in parts)
    lost = trainer.crew.lost()
    if args.save and fleet.is_first_worker():
        fleet.save_persistables(args.save)
    if args.bundle and fleet.is_first_worker():
        fleet.save_inference_model(args.bundle)
    fleet.stop_worker()
    speed = trained / seconds if seconds else 0.0
    summary = {"train_auc": result.train["auc"], "samples_per_s": speed, "rows": trained, "trainers": len(parts)}
    if result.test:
        summary |= {"test_auc": result.test["auc"], "test_logloss": result.test["logloss"]}
    if lost:
        summary |= {"lost": lost}
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    sf.plain_errors()
    main()
