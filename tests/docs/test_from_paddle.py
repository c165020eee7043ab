"""docs/from-paddle.md names every call of the Fluid, Fleet and FleetX documents."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "from-paddle.md"

CALLS = """
import paddle.fluid as fluid | import fleetx as X | import paddle.distributed.fleet as fleet
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
import paddle.distributed.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig
import paddle.fluid.incubate.data_generator as dg | sh get_data.sh | wget | sh loc_cluster.sh
python dataset_generator.py | python -u local_train.py --test=True | python -u infer.py
python -m paddle.distributed.launch_ps --worker_num 2 --server_num 2
fleetrun --server_num=1 --worker_num=2 ctr_app.py | dg.MultiSlotDataGenerator | dg.MultiSlotStringDataGenerator
generate_sample | run_from_stdin | hash(str(idx) + features[idx]) % hash_dim_ | fluid.DatasetFactory()
create_dataset | set_use_var | set_pipe_command | set_batch_size | set_thread | set_filelist | PyReader
fluid.DataFeeder | fleet.split_files | fluid.layers.data | fluid.layers.embedding | fluid.ParamAttr
fluid.initializer.Uniform() | fluid.initializer.Normal | fluid.layers.concat | fluid.layers.fc
fluid.layers.cross_entropy | fluid.layers.reduce_sum | fluid.layers.accuracy | fluid.layers.auc
fluid.framework.Variable() | fluid.framework.Parameter() | persistable | ctr_model.net(inputs, params)
fluid.optimizer.Adam | fluid.optimizer.SGD(learning_rate=1e-4) | optimizer.minimize(avg_cost)
optimizer.minimize(loss) | fluid.Executor(fluid.CPUPlace()) | exe.run(fluid.default_startup_program())
fluid.default_main_program() | exe.train_from_dataset(program=fluid.default_main_program(), dataset=dataset
fetch_list=[auc_var] | fetch_info= | print_period=10 | debug=False | fluid.executor.FetchHandler | fetch_handler=
auc = exe.run(fetch_list=[auc]) | infer_from_dataset | fluid.io.save_persistables(executor=exe, dirname=model_path)
fluid.io.save_persistables(exe, path, prog) | fluid.io.load_persistables | save_inference_model
fluid.framework.program_guard(test_program, startup_program) | fluid.framework.Program()
fluid.unique_name.guard() | fluid.global_scope() | _generated_var_0 | PADDLE_TRAINERS_NUM
PADDLE_PSERVERS_IP_PORT_LIST | TRAINING_ROLE | PADDLE_TRAINER_ID | PADDLE_PORT | POD_IP | proxy
role_maker.PaddleCloudRoleMaker() | fleet.init(role) | fleet.is_server() | fleet.is_worker()
fleet.is_first_worker() | DistributeTranspilerConfig() | sync_mode | runtime_split_send_recv | geo_sgd_mode
geo_sgd_need_push_nums | fluid.communicator.Communicator | auc_var.name
fluid.DistributeTranspiler(config=config) | t.transpile | t.get_pserver_program
t.get_startup_program | t.get_trainer_program | fleet.distributed_optimizer(optimizer, strategy)
fleet.init_server() | fleet.init_server(model_path) | fleet.run_server() | fleet.init_worker()
exe.run(fleet.startup_program) | program=fleet.main_program | fleet.stop_worker()
fleet.save_persistables(exe, path) | fleet.DistributedStrategy() | a_sync | X.parse_train_configs()
X.applications.MultiSlotCTR() | load_criteo_from_file('./train_data') | model.loss | X.Trainer(fluid.CPUPlace())
trainer.fit(model, loader, epoch=10) | fleet.util.all_reduce | fleet.worker_endpoints() | dir(fleet)
"""


def test_every_call_of_the_documents_stands_on_the_page():
    page = PAGE.read_text()
    calls = [call.strip() for line in CALLS.strip().splitlines() for call in line.split(" | ")]
    assert len(calls) > 100
    missing = [call for call in calls if call not in page]
    assert not missing


def test_every_ported_script_stands_on_the_page():
    page = PAGE.read_text()
    for script in (PAGE.parents[1] / "examples" / "fleet").iterdir():
        if script.suffix in (".py", ".sh"):
            assert re.search(rf"`{re.escape(script.name)}`", page), script.name
