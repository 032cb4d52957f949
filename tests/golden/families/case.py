"""What a golden is made of."""

N_PROMPT = 100  # longer than a cache page and than every window


class Case:
    """One golden. config: a transformers config (vocab_size is given by the maker). alter(name, tensor) may change or replace a
    random tensor. n_prompt: ids of the prompt. make: how the model is made (default: the causal model of the config). layers(model):
    its layers. publish(folder): change what was saved before it is converted; returns the architecture's name. is_quantised: the file is Q8_0, and there is
    neither directory nor golden. embed(model, ids): the model makes embeddings, this is the one of the ids. has_golden: what transformers computes can be compared; else the directory is, with the file."""

    def __init__(self, name, config, alter=None, n_prompt=N_PROMPT, seed=1, make=None, layers=None, publish=None,
                 is_quantised=False, has_golden=True, embed=None):
        self.name, self.config, self.alter, self.n_prompt, self.seed = name, config, alter, n_prompt, seed
        self.make, self.layers, self.publish = make, layers, publish
        self.is_quantised, self.has_golden, self.embed = is_quantised, has_golden, embed


def embedding_times(scale):
    """An alter() for tied embeddings that are scaled up: unless they are small, each token predicts itself."""
    return lambda name, x: x * scale if "embed" in name else x
