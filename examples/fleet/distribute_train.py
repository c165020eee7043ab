"""distribute_train.py of the CTR documents: servers and trainers, in any of the four modes.

fleetrun --server_num=2 --worker_num=2 distribute_train.py --mode async --test=True
fleetrun --server_num=2 --worker_num=2 distribute_train.py --init_model model/epoch_0        incremental training
sh loc_cluster.sh                                                                          each process by hand
"""

import logging
import os
import time

from argument import params_args
from network import CTR

import sparsefleet.fleet as fleet
import sparsefleet.fluid as fluid
from sparsefleet.fleet import DistributeTranspilerConfig, role_maker

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
    # A pipe command takes whole files: they are shared out, not cut.
    if not params.cloud:
        file_list = fleet.split_files(file_list, cuttable=False)
    dataset.set_filelist(file_list)
    logger.info("file list: {}".format(file_list))
    return dataset


def get_strategy(params):
    strategy = DistributeTranspilerConfig()
    strategy.sync_mode = params.mode == "sync"
    strategy.runtime_split_send_recv = params.mode != "sync"
    strategy.half_async = params.mode == "half_async"
    strategy.geo_sgd_mode = params.mode == "geo"
    if strategy.geo_sgd_mode:
        strategy.geo_sgd_need_push_nums = 10
    return strategy


def train(params):
    role = role_maker.PaddleCloudRoleMaker()
    fleet.init(role)

    ctr_model = CTR()
    inputs = ctr_model.input_data(params)
    avg_cost, auc_var, batch_auc_var = ctr_model.net(inputs, params)
    optimizer = fluid.optimizer.Adam(params.learning_rate)
    optimizer = fleet.distributed_optimizer(optimizer, get_strategy(params))
    optimizer.minimize(avg_cost)

    if fleet.is_server():
        # incremental training: servers start from the saved model
        fleet.init_server(params.init_model)
        fleet.run_server()
    elif fleet.is_worker():
        fleet.init_worker()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fleet.startup_program)
        dataset = get_dataset(inputs, params)

        for epoch in range(params.epochs):
            start_time = time.time()
            exe.train_from_dataset(
                program=fleet.main_program,
                dataset=dataset,
                fetch_list=[auc_var],
                fetch_info=["Epoch {} auc ".format(epoch)],
                print_period=10,
                debug=False,
            )
            end_time = time.time()
            logger.info("epoch %d finished, use time=%d\n" % ((epoch), end_time - start_time))

            # trainer 0 saves
            if params.test and fleet.is_first_worker():
                model_path = str(params.model_path) + "/" + "epoch_" + str(epoch)
                fluid.io.save_persistables(executor=exe, dirname=model_path)

        fleet.stop_worker()
        logger.info("Distribute Train Success!")


if __name__ == "__main__":
    train(params_args())
