"""py_reader_generator.py of the CTR documents: the samples of dataset_generator.py, for a PyReader."""

import sparsefleet as dg

cont_min_ = [0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
cont_diff_ = [20, 603, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50]
continuous_range_ = range(1, 14)
categorical_range_ = range(14, 40)


class CriteoDataset:
    def __init__(self, sparse_feature_dim):
        self.hash_dim_ = sparse_feature_dim

    def test(self, file_list):
        """A function that gives all samples of the files: their values, in the order of the network's inputs."""

        def reader():
            for name in file_list:
                with open(name) as lines:
                    for line in lines:
                        yield self.sample(line)

        return reader

    def sample(self, line):
        features = line.rstrip("\n").split("\t")
        dense_feature = []
        for idx in continuous_range_:
            if features[idx] == "":
                dense_feature.append(0.0)
            else:
                dense_feature.append((float(features[idx]) - cont_min_[idx - 1]) / cont_diff_[idx - 1])
        sparse_feature = [[dg.stable_hash(str(idx) + features[idx]) % self.hash_dim_] for idx in categorical_range_]
        return [dense_feature, *sparse_feature, [int(features[0])]]
