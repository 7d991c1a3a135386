"""Published scaling efficiencies, predicted from tables of layers: how far the model can be trusted."""
