"""The FleetX script of the documents, its imports changed.

fleetrun --server_num=1 --worker_num=2 ctr_app.py
"""

import sparsefleet as X
import sparsefleet.fleet as fleet
import sparsefleet.fluid as fluid
from sparsefleet.fleet import role_maker

configs = X.parse_train_configs()
role = role_maker.PaddleCloudRoleMaker()
fleet.init(role)

model = X.applications.MultiSlotCTR()
loader = model.load_criteo_from_file("./train_data")

dist_strategy = fleet.DistributedStrategy()
dist_strategy.a_sync = False

optimizer = fluid.optimizer.SGD(learning_rate=0.0001)
optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)
optimizer.minimize(model.loss)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    trainer = X.Trainer(fluid.CPUPlace())
    trainer.fit(model, loader, epoch=10)
