"""argument.py of the CTR documents: hyperparameters and settings from the command line."""

import argparse


def str2bool(text):
    return text.lower() in ("1", "true", "yes", "on")


def params_args():
    parser = argparse.ArgumentParser(description="CTR-DNN as in the documents.")
    parser.add_argument("--train_files_path", default="./train_data", help="folder of training files")
    parser.add_argument("--test_files_path", default="./test_data", help="folder of test files")
    parser.add_argument("--model_path", default="model", help="where models are saved")
    parser.add_argument("--init_model", default=None, help="checkpoint to start from: incremental training")
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--batch_size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--cpu_num", type=int, default=1, help="threads of reading and of training")
    parser.add_argument("--dense_feature_dim", type=int, default=13)
    parser.add_argument("--sparse_feature_dim", type=int, default=1000001)
    parser.add_argument("--embedding_size", type=int, default=10)
    parser.add_argument("--is_sparse", type=str2bool, default=True)
    parser.add_argument("--test", type=str2bool, default=False, help="save the model after each epoch")
    parser.add_argument("--cloud", type=str2bool, default=False, help="each machine has files of its own already")
    parser.add_argument("--mode", default="async", help="sync, half_async, async or geo")
    return parser.parse_args()
