"""network_conf.py of the quick start: the CTR-DNN that we ship."""

import sparsefleet as sf


def ctr_dnn_model_dataset(dense_input, sparse_input_ids, label, embedding_size, sparse_feature_dim):
    slots = [variable.name for variable in sparse_input_ids]
    model = sf.CTRDNN(slots, dense_input.shape[-1], sf.CTRDNNConfig(embedding_size=embedding_size))
    return model.loss, "auc", "batch_auc"
