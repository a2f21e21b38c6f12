"""What the worker and the verifier must agree on.

Written by tools/worker_constants from src/verify/worker_constants.h.
"""

PROTOCOL = 1
SOCKET_FD = 3  # the worker's end
MAX_MESSAGE_BYTES = 64 << 20  # either way
MAX_MESSAGE_FDS = 4  # descriptors that travel with one message
KIND_PROBLEM = "problem"
KIND_MEMORY = "memory"
KIND_IMPORT = "import"
KIND_INTERNAL = "internal"
WORD_EQUAL = "equal"
WORD_DIFFERENT = "different"
WORD_NOT_FINITE = "not_finite"
WORD_INPUTS_CHANGED = "inputs_changed"
WORD_UNREACHABLE = "unreachable"
REFERENCE_LANE = 0
FAMILY_SHIPPED = "shipped"
FAMILY_SIGNED = "signed"
FAMILY_SCALED = "scaled"
FAMILY_SMALL = "small"
FAMILY_NEGATED = "negated"
FAMILY_OFFSET = "offset"
FAMILY_UNIT = "unit"
FAMILY_SPIKES = "spikes"
FAMILY_PROBE = "probe"
FAMILY_TOUCHED = "touched"
TOLERANCE_SINGLE = 1e-4  # of float64 and float32
TOLERANCE_HALF = 1e-2  # of float16 and bfloat16
TOLERANCE_NOISES = 10  # times the reference's own error, where that is more
ROW_ELEMENTS = 64  # that a row has at least, where there are so many
ZERO_SCALE = 1e-3  # of an output that is zero everywhere
FLOOR_SINGLE = 1e-2  # share of the rows' median scale that each row's scale has at least
FLOOR_HALF = 1.0  # half types round by about their tolerance
NOISE_MOST = 1e-3  # a family on which a CPU's reference is this far from float64 tests nothing
