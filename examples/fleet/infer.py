"""infer.py of the CTR documents: score the test data with a saved model, in one process.

python -u infer.py model/epoch_0
"""

import logging
import os
import sys

from network import CTR
from py_reader_generator import CriteoDataset

import sparsefleet.fluid as fluid

logging.basicConfig(format="%(asctime)s - %(levelname)s - %(message)s")
logger = logging.getLogger("fluid")
logger.setLevel(logging.INFO)


class params:
    dense_feature_dim, sparse_feature_dim, embedding_size = 13, 1000001, 10
    test_files_path, batch_size = os.environ.get("TEST_DATA", "./test_data"), 1000


def run_infer(model_path):
    place = fluid.CPUPlace()
    ctr_model = CTR()
    inputs = ctr_model.input_data(params)
    loss, auc_var, batch_auc_var = ctr_model.net(inputs, params)

    exe = fluid.Executor(place)
    fluid.io.load_persistables(executor=exe, dirname=model_path, main_program=loss.model)

    file_list = [params.test_files_path + f"/{x}" for x in sorted(os.listdir(params.test_files_path))]
    test_reader = CriteoDataset(params.sparse_feature_dim).test(file_list)
    py_reader = fluid.io.PyReader(feed_list=inputs, capacity=64)
    py_reader.decorate_sample_generator(test_reader, batch_size=params.batch_size, drop_last=False)
    # Metrics start from zero: nothing is left in the model of those of training.
    result = exe.infer_from_dataset(program=loss.model, dataset=py_reader, fetch_list=[auc_var], fetch_info=["auc"])
    logger.info("infer finished, auc: {}, logloss: {}".format(result["auc"], result["logloss"]))


if __name__ == "__main__":
    run_infer(sys.argv[1])
