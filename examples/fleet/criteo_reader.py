"""criteo_reader.py of the quick start: as dataset_generator.py, with the number of keys as its argument."""

import sys

import sparsefleet as dg

cont_min_ = [0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
cont_diff_ = [20, 603, 100, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50]


class CriteoDataset(dg.MultiSlotDataGenerator):
    def setup(self, sparse_feature_dim):
        self.hash_dim_ = sparse_feature_dim

    def generate_sample(self, line):
        def reader():
            features = line.rstrip("\n").split("\t")
            dense = [
                0.0 if text == "" else (float(text) - least) / diff
                for text, least, diff in zip(features[1:14], cont_min_, cont_diff_, strict=True)
            ]
            sparse = [[dg.stable_hash(str(idx) + features[idx]) % self.hash_dim_] for idx in range(14, 40)]
            names = ["dense_input", *("C" + str(idx) for idx in range(1, 27)), "label"]
            yield zip(names, [dense, *sparse, [int(features[0])]], strict=True)

        return reader


d = CriteoDataset()
d.setup(int(sys.argv[1]))
d.run_from_stdin()
