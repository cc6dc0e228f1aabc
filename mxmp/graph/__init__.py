"""Internal: an immutable nnvm graph, the content of MXNet's symbols, without MXNet."""

from .core import HINT as HINT
from .core import VARIABLE as VARIABLE
from .core import Entry as Entry
from .core import Graph as Graph
from .core import GraphBuilder as GraphBuilder
from .core import Key as Key
from .core import Node as Node
from .core import in_written_order as in_written_order
from .core import make_attrs as make_attrs
from .core import renamed as renamed
from .core import verify as verify
from .core import with_unique_names as with_unique_names
from .core import without_versions as without_versions
from .core import written_positions as written_positions
from .json import GRADIENT as GRADIENT
from .json import check_json as check_json
from .json import from_json as from_json
from .json import to_json as to_json
from .json import version_of as version_of
