"""The lists of operators, under the names of ``mxnet.contrib.amp.lists``.

They hold mxmp's rules, as do ``amp.list_lp16_ops`` and its like; given to `init` or to a
conversion they change nothing. In contrib.amp they are changed in place at times: here that is an
error, since nothing would come of it. Pass a changed copy: ``[*lists.symbol_fp16.FP32_FUNCS, "relu"]``.
"""

from . import symbol_bf16 as symbol_bf16
from . import symbol_fp16 as symbol_fp16
