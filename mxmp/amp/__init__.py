"""Drop-in for ``mxnet.contrib.amp``, and the interface of NVIDIA Apex: ``from mxmp import amp``.

Where it differs from contrib.amp, on purpose:

- `init` patches no operator. It converts hybridized nets, those hybridized earlier and SymbolBlocks
  included, when they run next, and they stay converted; code that runs eagerly stays float32. `disable` undoes it.
- `init_trainer` gives a trainer exact skips: one overflow destroys nothing with any number of
  devices, the scale backs off at once and has a floor, and ``save_states`` keeps it. It starts at 256 and doubles
  up to the first overflow, in place of 65536, which skips several steps.
  For bfloat16 it gives none unless asked.
- Loss heads in hybridized nets and losses are scaled; those that run eagerly are refused, where contrib.amp
  scales these alone. ``trainer._amp_loss_scaler`` has the names that scripts read and write.
- A step whose loss was not scaled, gradients unscaled twice and the like are errors.
- Any operator with a low precision kernel can be put in ``target_dtype_ops``; with the list given,
  no other matrix product or convolution runs in low precision. ``fp32_ops`` adds to the operators
  that need float32, and takes none away. Unknown operators and excluded names are errors.
- Conversions keep the names of outputs and the caller's dicts, and survive saving. The
  results of `convert_hybrid_block` and `convert_bucketing_module` train too, and run on a CPU.
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
