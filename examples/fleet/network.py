"""network.py of the CTR documents. The inputs are declared as there; the network is a torch module that we ship."""

import sparsefleet as sf
import sparsefleet.fluid as fluid


class CTR:
    def input_data(self, params):
        dense_input = fluid.layers.data(name="dense_input", shape=[params.dense_feature_dim], dtype="float32")
        sparse_input_ids = [
            fluid.layers.data(name="C" + str(i), shape=[1], lod_level=1, dtype="int64") for i in range(1, 27)
        ]
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        return [dense_input, *sparse_input_ids, label]

    def net(self, inputs, params):
        # Embedding, three fc layers of 400 with relu, fc of 2 with softmax, cross_entropy, reduce_sum, auc: all of it.
        slots = [variable.name for variable in inputs[1:-1]]
        config = sf.CTRDNNConfig(embedding_size=params.embedding_size, initializer=fluid.initializer.Uniform())
        model = sf.CTRDNN(slots, params.dense_feature_dim, config)
        return model.loss, "auc", "batch_auc"
