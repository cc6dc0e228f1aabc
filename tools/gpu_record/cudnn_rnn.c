/* Recurrent networks of cuDNN: dtype, sizes, dtype of the sums, math type. */
#include "cudnn.h"

#include <stdlib.h>

typedef struct {
  int math, compute, hidden, layers, directions, mode, projection;
} Rnn;
DESCRIPTOR(RNN, Rnn)

int cudnnSetRNNDescriptor_v6(void *handle, Rnn *rnn, int hidden, int layers, void *dropout, int input, int direction,
                             int mode, int algorithm, int compute) {
  rnn->hidden = hidden;
  rnn->layers = layers;
  rnn->directions = direction ? 2 : 1;
  rnn->mode = mode;
  rnn->compute = compute;
  rnn->projection = 0;
  return 0;
}

int cudnnSetRNNMatrixMathType(Rnn *rnn, int math) {
  rnn->math = math;
  return 0;
}

int cudnnSetRNNProjectionLayers(void *handle, Rnn *rnn, int size, int output) {
  rnn->projection = size;
  return 0;
}

ACCEPTED(cudnnSetRNNPaddingMode)
ACCEPTED(cudnnRNNSetClip)

static const struct {
  const char *name;
  int gates;
} rnn_modes[] = {{"relu", 1}, {"tanh", 1}, {"lstm", 4}, {"gru", 3}}; /* cudnnRNNMode_t */

/* MXNet checks this against the size of the parameter: per layer and direction, weights of the input and of the state
 * and two biases for each gate, and the projection. */
int cudnnGetRNNParamsSize(void *handle, const Rnn *rnn, const Tensor *x, size_t *bytes, int dtype) {
  size_t gates = (size_t)rnn_modes[rnn->mode & 3].gates, hidden = (size_t)rnn->hidden;
  size_t directions = (size_t)rnn->directions, projection = (size_t)rnn->projection;
  size_t state = projection ? projection : hidden, input = (size_t)x->dims[1], elements = 0;
  for (int layer = 0; layer < rnn->layers; layer++) {
    elements += directions * (gates * hidden * (input + state + 2) + projection * hidden);
    input = directions * state;
  }
  *bytes = elements * dnn_dtype_bytes(dtype);
  return 0;
}

#define RNN_MEMORY(name)                                                                      \
  int name(void *handle, const Rnn *rnn, int length, const Tensor *const *x, size_t *bytes) { \
    *bytes = 4 * DNN_WORKSPACE;                                                               \
    return 0;                                                                                 \
  }
RNN_MEMORY(cudnnGetRNNWorkspaceSize)
RNN_MEMORY(cudnnGetRNNTrainingReserveSize)

static int record_rnn(const char *call, const Rnn *rnn, const Tensor *x) {
  line_begin(call);
  line_tensor("x", x);
  line_string("mode", rnn_modes[rnn->mode & 3].name);
  line_string("compute", dnn_dtype(rnn->compute));
  line_string("math", dnn_math(rnn->math));
  line_integer("hidden", rnn->hidden);
  line_integer("layers", rnn->layers);
  line_integer("directions", rnn->directions);
  line_integer("projection", rnn->projection);
  line_end();
  return 0;
}

#define RNN_CALL(call) \
  int call(void *handle, const Rnn *rnn, const Tensor *x) { return record_rnn(#call, rnn, x); }
RNN_CALL(cudnnRNNForwardInferenceEx)
RNN_CALL(cudnnRNNForwardTrainingEx)
RNN_CALL(cudnnRNNBackwardDataEx)
RNN_CALL(cudnnRNNBackwardWeightsEx)
