"""Drop-in for ``mxnet.contrib.amp``, and the interface of NVIDIA Apex: ``from mxmp import amp``.

It differs from contrib.amp on purpose:

- `init` patches no operator. It converts hybridized nets when they run next, also nets hybridized earlier and
  SymbolBlocks. They stay converted until `disable`. Code that runs eagerly stays float32.
- `init_trainer` gives a trainer exact skips: an overflow changes nothing, with any number of devices. The scale backs
  off at once, has a floor, and is saved by ``save_states``. It starts at 256 and doubles up to the first overflow;
  contrib.amp starts at 65536 and skips several steps. For bfloat16 there is no scale by default.
- Loss heads in hybridized nets are scaled, and losses are. Loss heads that run eagerly are refused; contrib.amp scales
  only those. ``trainer._amp_loss_scaler`` has the names that scripts read and write.
- An unscaled loss in a step is an error, and so are gradients that are unscaled twice.
- Any operator with a low precision kernel can be in ``target_dtype_ops``. With that list no other matrix product or
  convolution runs in low precision. ``fp32_ops`` only adds to the operators that need float32. Unknown operators and
  excluded names are errors.
- Conversions keep the names of outputs, leave the caller's dicts unchanged, and survive saving. The results of
  `convert_hybrid_block` and `convert_bucketing_module` train too, and run on a CPU.
"""

from ..names import hooks as _hooks
from . import lists as lists
from .apex import initialize as initialize
from .apex import load_state_dict as load_state_dict
from .apex import master_params as master_params
from .apex import state_dict as state_dict
from .contrib import convert_bucketing_module as convert_bucketing_module
from .contrib import convert_hybrid_block as convert_hybrid_block
from .contrib import convert_model as convert_model
from .contrib import convert_symbol as convert_symbol
from .contrib import disable as disable
from .contrib import disable_casts as disable_casts
from .contrib import init as init
from .contrib import init_trainer as init_trainer
from .contrib import scale_loss as scale_loss
from .contrib import unscale as unscale
from .operators import AmpError as AmpError
from .operators import list_conditional_fp32_ops as list_conditional_fp32_ops
from .operators import list_fp32_ops as list_fp32_ops
from .operators import list_loss_output_functions as list_loss_output_functions
from .operators import list_lp16_fp32_ops as list_lp16_fp32_ops
from .operators import list_lp16_ops as list_lp16_ops
from .operators import list_lp16_use_fp32_params as list_lp16_use_fp32_params
from .operators import list_widest_type_cast as list_widest_type_cast

globals().update(_hooks(__name__))
