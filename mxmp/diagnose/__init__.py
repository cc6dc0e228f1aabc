"""What a machine can do, and where the precision of a network is lost."""

from ..devices.amx import AmxStatus as AmxStatus
from ..devices.amx import amx_status as amx_status
from ..devices.bfloat16 import runs_bfloat16 as runs_bfloat16
from ..devices.check import Finding as Finding
from ..devices.check import check_devices as check_devices
from .compare_nodes import compare as compare
from .comparison import Comparison as Comparison
from .comparison import NodeComparison as NodeComparison
from .comparison import OutputComparison as OutputComparison
from .doctor import Check as Check
from .doctor import Diagnosis as Diagnosis
from .doctor import examine as examine
from .measure import Magnitudes as Magnitudes
from .measure import measure_gradients as measure_gradients
from .measure import measure_ranges as measure_ranges
