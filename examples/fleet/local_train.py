"""local_train.py of the CTR documents: one process.

python -u local_train.py --test=True
"""

import logging
import os
import time

from argument import params_args
from network import CTR

import sparsefleet.fluid as fluid

logging.basicConfig(format="%(asctime)s - %(levelname)s - %(message)s")
logger = logging.getLogger("fluid")
logger.setLevel(logging.INFO)


def get_dataset(inputs, params):
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var(inputs)
    dataset.set_pipe_command("python dataset_generator.py")
    dataset.set_batch_size(params.batch_size)
    dataset.set_thread(int(params.cpu_num))
    file_list = [str(params.train_files_path) + f"/{x}" for x in sorted(os.listdir(params.train_files_path))]
    dataset.set_filelist(file_list)
    logger.info("file list: {}".format(file_list))
    return dataset


def train(params):
    # the model
    ctr_model = CTR()
    inputs = ctr_model.input_data(params)
    avg_cost, auc_var, batch_auc_var = ctr_model.net(inputs, params)

    # the optimizer
    optimizer = fluid.optimizer.Adam(params.learning_rate)
    optimizer.minimize(avg_cost)

    # the executor
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())

    # the data
    dataset = get_dataset(inputs, params)

    logger.info("Training Begin")
    for epoch in range(params.epochs):
        start_time = time.time()

        class fetch_vars(fluid.executor.FetchHandler):
            def handler(self, fetch_target_vars):
                auc_value = fetch_target_vars[0]
                logger.info("epoch -> {}, auc -> {}, at: {}".format(epoch, auc_value, time.ctime()))

        exe.train_from_dataset(
            program=fluid.default_main_program(),
            dataset=dataset,
            fetch_list=[auc_var],
            fetch_info=["Epoch {} auc ".format(epoch)],
            print_period=10,
            debug=False,
            fetch_handler=fetch_vars([auc_var], 5, True),
        )
        end_time = time.time()
        logger.info("epoch %d finished, use time=%d\n" % ((epoch), end_time - start_time))

        if params.test:
            model_path = str(params.model_path) + "/" + "epoch_" + str(epoch)
            fluid.io.save_persistables(executor=exe, dirname=model_path)

    logger.info("Train Success!")


if __name__ == "__main__":
    train(params_args())
