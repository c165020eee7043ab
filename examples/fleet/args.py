"""args.py of the quick start."""

import argparse


def parse_args():
    parser = argparse.ArgumentParser(description="CTR-DNN: the quick start.")
    parser.add_argument("--is_local", type=int, default=0, help="1: one process")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the data (%(default)s)")
    return parser.parse_args()
