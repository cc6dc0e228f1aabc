/* cuDNN 8.1: descriptors remember what was set, and calls are recorded with what their descriptors say. */
#include "record.h"

#include <stdlib.h>

/* ---- descriptors */

typedef struct { /* of a tensor, a filter or an RNN's data */
  int dtype, count, dims[8], strides[8];
} Tensor;
typedef struct {
  int math, compute, groups;
} Convolution;
typedef struct {
  int math, compute, hidden, layers, directions, mode, projection;
} Rnn;
typedef struct { /* of what is recorded without its settings */
  int unused;
} Plain;

#define DESCRIPTOR(kind, Type)                      \
  int cudnnCreate##kind##Descriptor(Type **made) {  \
    *made = calloc(1, sizeof **made);               \
    return *made ? 0 : 2; /* CUDNN_STATUS_ALLOC_FAILED */ \
  }                                                 \
  int cudnnDestroy##kind##Descriptor(Type *old) {   \
    free(old);                                      \
    return 0;                                       \
  }
DESCRIPTOR(Tensor, Tensor)
DESCRIPTOR(Filter, Tensor)
DESCRIPTOR(RNNData, Tensor)
DESCRIPTOR(Convolution, Convolution)
DESCRIPTOR(RNN, Rnn)
DESCRIPTOR(Activation, Plain)
DESCRIPTOR(Dropout, Plain)
DESCRIPTOR(Pooling, Plain)
DESCRIPTOR(SpatialTransformer, Plain)
ACCEPTED(cudnnSetActivationDescriptor)
ACCEPTED(cudnnSetDropoutDescriptor)
ACCEPTED(cudnnRestoreDropoutDescriptor)
ACCEPTED(cudnnSetPooling2dDescriptor)
ACCEPTED(cudnnSetPoolingNdDescriptor)
ACCEPTED(cudnnSetSpatialTransformerNdDescriptor)

/* ---- names of cuDNN's numbers */

static const struct {
  const char *name;
  int bytes;
} dtypes[] = {{"float32", 4}, {"float64", 8}, {"float16", 2},     {"int8", 1},     {"int32", 4}, {"int8x4", 4},
              {"uint8", 1},   {"uint8x4", 4}, {"int8x32", 32},    {"bfloat16", 2}, {"int64", 8}}; /* cudnnDataType_t */

static const char *dtype_name(int dtype) {
  return dtype >= 0 && dtype < COUNT_OF(dtypes) ? dtypes[dtype].name : "unknown";
}

static size_t dtype_bytes(int dtype) {
  return dtype >= 0 && dtype < COUNT_OF(dtypes) ? (size_t)dtypes[dtype].bytes : 4;
}

static const char *math_name(int math) { /* cudnnMathType_t */
  static const char *const names[] = {"default", "tensor_op", "tensor_op_allow_conversion", "fma"};
  return math >= 0 && math < COUNT_OF(names) ? names[math] : "unknown";
}

static void line_tensor(const char *key, const Tensor *tensor) {
  line_object(key);
  line_string("dtype", dtype_name(tensor->dtype));
  line_integers("shape", tensor->dims, tensor->count);
  /* NHWC: channels, the second dimension, lie next to each other. */
  if (tensor->count > 2 && tensor->dims[1] > 1 && tensor->strides[1] == 1) line_string("layout", "NHWC");
  line_close();
}

static int record_tensors(const char *call, const char *first_key, const Tensor *first, const char *second_key,
                          const Tensor *second) {
  line_begin(call);
  line_tensor(first_key, first);
  line_tensor(second_key, second);
  line_end();
  return 0;
}

/* ---- the library */

int cudnnCreate(void **handle) { return make_handle(handle); }
ACCEPTED(cudnnDestroy)
ACCEPTED(cudnnSetStream)
size_t cudnnGetVersion(void) { return 8101; }
const char *cudnnGetErrorString(int error) { return error ? "cuDNN error" : "CUDNN_STATUS_SUCCESS"; }

/* ---- tensors */

int cudnnSetTensor4dDescriptor(Tensor *tensor, int format, int dtype, int n, int c, int h, int w) {
  enum { NCHW, NHWC };
  *tensor = format == NHWC ? (Tensor){dtype, 4, {n, c, h, w}, {c * h * w, 1, w * c, c}}
                           : (Tensor){dtype, 4, {n, c, h, w}, {c * h * w, h * w, w, 1}};
  return 0;
}

int cudnnSetTensorNdDescriptor(Tensor *tensor, int dtype, int count, const int *dims, const int *strides) {
  if (count > COUNT_OF(tensor->dims)) return 3; /* CUDNN_STATUS_BAD_PARAM */
  *tensor = (Tensor){.dtype = dtype, .count = count};
  for (int i = 0; i < count; i++) {
    tensor->dims[i] = dims[i];
    tensor->strides[i] = strides ? strides[i] : 0;
  }
  return 0;
}

int cudnnSetFilter4dDescriptor(Tensor *filter, int dtype, int format, int k, int c, int h, int w) {
  return cudnnSetTensor4dDescriptor(filter, format, dtype, k, c, h, w);
}

int cudnnSetFilterNdDescriptor(Tensor *filter, int dtype, int format, int count, const int *dims) {
  return cudnnSetTensorNdDescriptor(filter, dtype, count, dims, NULL);
}

int cudnnSetRNNDataDescriptor(Tensor *data, int dtype, int layout, int length, int batch, int size) {
  *data = (Tensor){dtype, 3, {length, batch, size}, {0}};
  return 0;
}

int cudnnAddTensor(void *handle, const void *alpha, const Tensor *added, const void *a, const void *beta,
                   const Tensor *y) {
  return record_tensors("cudnnAddTensor", "x", added, "y", y);
}

/* ---- convolution */

int cudnnSetConvolution2dDescriptor(Convolution *convolution, int pad_h, int pad_w, int stride_h, int stride_w,
                                    int dilate_h, int dilate_w, int mode, int compute) {
  convolution->compute = compute;
  return 0;
}

int cudnnSetConvolutionNdDescriptor(Convolution *convolution, int count, const int *pad, const int *stride,
                                    const int *dilate, int mode, int compute) {
  convolution->compute = compute;
  return 0;
}

int cudnnSetConvolutionMathType(Convolution *convolution, int math) {
  convolution->math = math;
  return 0;
}

int cudnnSetConvolutionGroupCount(Convolution *convolution, int groups) {
  convolution->groups = groups;
  return 0;
}

typedef struct { /* cudnnConvolutionFwdAlgoPerf_t, and the same for the two backward ones */
  int algorithm, status;
  float milliseconds;
  size_t workspace;
  int determinism, math, reserved[3];
} Performance;

enum { ALGORITHM = 1, ALGORITHMS = 8, WORKSPACE = 1024 };

/* Offers one algorithm, which always does, with the math type that the convolution asks for. */
static int find_algorithm(const char *call, const Convolution *convolution, int wanted, int *found, Performance *best) {
  *found = wanted > 0;
  if (*found)
    *best = (Performance){.algorithm = ALGORITHM,
                          .milliseconds = 1,
                          .workspace = WORKSPACE,
                          .determinism = 1,
                          .math = convolution->math};
  return line_alone(call);
}

#define CHOICE(direction)                                                                                            \
  int cudnnGetConvolution##direction##AlgorithmMaxCount(void *handle, int *count) {                                  \
    *count = ALGORITHMS;                                                                                             \
    return 0;                                                                                                        \
  }                                                                                                                  \
  int cudnnFindConvolution##direction##Algorithm(void *handle, const Tensor *a, const Tensor *b,                     \
                                                 const Convolution *convolution, const Tensor *c, int wanted,        \
                                                 int *found, Performance *best) {                                    \
    return find_algorithm("cudnnFindConvolution" #direction "Algorithm", convolution, wanted, found, best);          \
  }                                                                                                                  \
  int cudnnGetConvolution##direction##Algorithm_v7(void *handle, const Tensor *a, const Tensor *b,                   \
                                                   const Convolution *convolution, const Tensor *c, int wanted,      \
                                                   int *found, Performance *best) {                                  \
    return find_algorithm("cudnnGetConvolution" #direction "Algorithm_v7", convolution, wanted, found, best);        \
  }                                                                                                                  \
  int cudnnGetConvolution##direction##WorkspaceSize(void *handle, const Tensor *a, const Tensor *b,                  \
                                                    const Convolution *convolution, const Tensor *c, int algorithm,  \
                                                    size_t *bytes) {                                                 \
    *bytes = WORKSPACE;                                                                                              \
    return 0;                                                                                                        \
  }
CHOICE(Forward)
CHOICE(BackwardData)
CHOICE(BackwardFilter)

static int record_convolution(const char *call, const Tensor *x, const Tensor *w, const Tensor *y,
                              const Convolution *convolution) {
  line_begin(call);
  line_tensor("x", x);
  line_tensor("w", w);
  line_tensor("y", y);
  line_string("compute", dtype_name(convolution->compute));
  line_string("math", math_name(convolution->math));
  line_integer("groups", convolution->groups ? convolution->groups : 1);
  line_end();
  return 0;
}

int cudnnConvolutionForward(void *handle, const void *alpha, const Tensor *x, const void *x_data, const Tensor *w,
                            const void *w_data, const Convolution *convolution, int algorithm, void *workspace,
                            size_t workspace_bytes, const void *beta, const Tensor *y, void *y_data) {
  return record_convolution("cudnnConvolutionForward", x, w, y, convolution);
}

int cudnnConvolutionBackwardData(void *handle, const void *alpha, const Tensor *w, const void *w_data, const Tensor *dy,
                                 const void *dy_data, const Convolution *convolution, int algorithm, void *workspace,
                                 size_t workspace_bytes, const void *beta, const Tensor *dx, void *dx_data) {
  return record_convolution("cudnnConvolutionBackwardData", dx, w, dy, convolution);
}

int cudnnConvolutionBackwardFilter(void *handle, const void *alpha, const Tensor *x, const void *x_data,
                                   const Tensor *dy, const void *dy_data, const Convolution *convolution, int algorithm,
                                   void *workspace, size_t workspace_bytes, const void *beta, const Tensor *dw,
                                   void *dw_data) {
  return record_convolution("cudnnConvolutionBackwardFilter", x, dw, dy, convolution);
}

int cudnnConvolutionBackwardBias(void *handle, const void *alpha, const Tensor *dy, const void *dy_data,
                                 const void *beta, const Tensor *db, void *db_data) {
  return record_tensors("cudnnConvolutionBackwardBias", "y", dy, "b", db);
}

/* ---- batch normalization */

/* Its parameters are float32 for float16 and float32 data, one for each channel. */
int cudnnDeriveBNTensorDescriptor(Tensor *derived, const Tensor *x, int mode) {
  enum { FLOAT32 = 0, FLOAT64 = 1 };
  *derived = *x;
  derived->dtype = x->dtype == FLOAT64 ? FLOAT64 : FLOAT32;
  for (int i = 0; i < x->count; i++)
    if (i != 1) derived->dims[i] = 1;
  return 0;
}

static int record_norm(const char *call, const Tensor *x, const Tensor *y, const Tensor *parameters) {
  line_begin(call);
  line_tensor("x", x);
  line_tensor("y", y);
  line_tensor("parameters", parameters);
  line_end();
  return 0;
}

int cudnnBatchNormalizationForwardTraining(void *handle, int mode, const void *alpha, const void *beta, const Tensor *x,
                                           const void *x_data, const Tensor *y, void *y_data,
                                           const Tensor *parameters) {
  return record_norm("cudnnBatchNormalizationForwardTraining", x, y, parameters);
}

int cudnnBatchNormalizationForwardInference(void *handle, int mode, const void *alpha, const void *beta,
                                            const Tensor *x, const void *x_data, const Tensor *y, void *y_data,
                                            const Tensor *parameters) {
  return record_norm("cudnnBatchNormalizationForwardInference", x, y, parameters);
}

int cudnnBatchNormalizationBackward(void *handle, int mode, const void *alpha_data, const void *beta_data,
                                    const void *alpha_parameters, const void *beta_parameters, const Tensor *x,
                                    const void *x_data, const Tensor *dy, const void *dy_data, const Tensor *dx,
                                    void *dx_data, const Tensor *parameters) {
  return record_norm("cudnnBatchNormalizationBackward", x, dy, parameters);
}

/* ---- softmax, pooling, activation, dropout */

int cudnnSoftmaxForward(void *handle, int algorithm, int mode, const void *alpha, const Tensor *x, const void *x_data,
                        const void *beta, const Tensor *y) {
  return record_tensors("cudnnSoftmaxForward", "x", x, "y", y);
}

int cudnnSoftmaxBackward(void *handle, int algorithm, int mode, const void *alpha, const Tensor *y, const void *y_data,
                         const Tensor *dy, const void *dy_data, const void *beta, const Tensor *dx) {
  return record_tensors("cudnnSoftmaxBackward", "x", dx, "y", dy);
}

#define POINTWISE(kind)                                                                                               \
  int cudnn##kind##Forward(void *handle, void *descriptor, const void *alpha, const Tensor *x, const void *x_data,    \
                           const void *beta, const Tensor *y) {                                                       \
    return record_tensors("cudnn" #kind "Forward", "x", x, "y", y);                                                   \
  }                                                                                                                   \
  int cudnn##kind##Backward(void *handle, void *descriptor, const void *alpha, const Tensor *y, const void *y_data,   \
                            const Tensor *dy, const void *dy_data, const Tensor *x) {                                 \
    return record_tensors("cudnn" #kind "Backward", "x", x, "y", dy);                                                 \
  }
POINTWISE(Pooling)
POINTWISE(Activation)

int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
  *bytes = 1 << 20;
  return 0;
}

/* A bit for each element says whether it was kept. */
int cudnnDropoutGetReserveSpaceSize(const Tensor *x, size_t *bytes) {
  size_t elements = 1;
  for (int i = 0; i < x->count; i++) elements *= (size_t)x->dims[i];
  *bytes = elements / 8 + 64;
  return 0;
}

int cudnnDropoutForward(void *handle, void *dropout, const Tensor *x, const void *x_data, const Tensor *y) {
  return record_tensors("cudnnDropoutForward", "x", x, "y", y);
}

int cudnnDropoutBackward(void *handle, void *dropout, const Tensor *dy, const void *dy_data, const Tensor *dx) {
  return record_tensors("cudnnDropoutBackward", "x", dx, "y", dy);
}

RECORDED(cudnnSpatialTfGridGeneratorForward)
RECORDED(cudnnSpatialTfGridGeneratorBackward)
RECORDED(cudnnSpatialTfSamplerForward)
RECORDED(cudnnSpatialTfSamplerBackward)

/* ---- recurrent networks */

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
  *bytes = elements * dtype_bytes(dtype);
  return 0;
}

#define RNN_MEMORY(name)                                                                                      \
  int name(void *handle, const Rnn *rnn, int length, const Tensor *const *x, size_t *bytes) { \
    *bytes = 4 * WORKSPACE;                                                                                   \
    return 0;                                                                                                 \
  }
RNN_MEMORY(cudnnGetRNNWorkspaceSize)
RNN_MEMORY(cudnnGetRNNTrainingReserveSize)

static int record_rnn(const char *call, const Rnn *rnn, const Tensor *x) {
  line_begin(call);
  line_tensor("x", x);
  line_string("mode", rnn_modes[rnn->mode & 3].name);
  line_string("compute", dtype_name(rnn->compute));
  line_string("math", math_name(rnn->math));
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
