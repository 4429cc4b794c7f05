"""Networks, one family per file, and `Model`, which splits each into a representation and a head.

`make_model` builds a network of the register `MODELS` by name.
"""

from fedlab_lite.nn.equilibrium_nets import DEQMLP, Solve, residual_cell
from fedlab_lite.nn.fl_deq import FLCNN, FLDEQCNN, ConvLayer, FLDEQResNet, FLResNet
from fedlab_lite.nn.gaussian import Gaussian
from fedlab_lite.nn.inspect import equilibrium_layers
from fedlab_lite.nn.layers import conv2d
from fedlab_lite.nn.model import Model, count_params
from fedlab_lite.nn.register import MODELS, make_model, model_defaults, model_options, models_for
