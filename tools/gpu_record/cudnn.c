/* cuDNN 8.1 apart from convolutions and recurrent networks: calls are recorded with what their descriptors say. */
#include "cudnn.h"

#include <stdlib.h>

/* ---- descriptors */

typedef struct { /* of what is recorded without its settings */
  int unused;
} Plain;
DESCRIPTOR(Tensor, Tensor)
DESCRIPTOR(Filter, Tensor)
DESCRIPTOR(RNNData, Tensor)
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

const char *dnn_dtype(int dtype) {
  return dtype >= 0 && dtype < COUNT_OF(dtypes) ? dtypes[dtype].name : "unknown";
}

size_t dnn_dtype_bytes(int dtype) {
  return dtype >= 0 && dtype < COUNT_OF(dtypes) ? (size_t)dtypes[dtype].bytes : 4;
}

const char *dnn_math(int math) { /* cudnnMathType_t */
  static const char *const names[] = {"default", "tensor_op", "tensor_op_allow_conversion", "fma"};
  return math >= 0 && math < COUNT_OF(names) ? names[math] : "unknown";
}

void line_tensor(const char *key, const Tensor *tensor) {
  line_object(key);
  line_string("dtype", dnn_dtype(tensor->dtype));
  line_integers("shape", tensor->dims, tensor->count);
  /* NHWC: channels, the second dimension, lie next to each other. */
  if (tensor->count > 2 && tensor->dims[1] > 1 && tensor->strides[1] == 1) line_string("layout", "NHWC");
  line_close();
}

int record_tensors(const char *call, const char *first_key, const Tensor *first, const char *second_key,
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

#define POINTWISE(kind)                                                                                             \
  int cudnn##kind##Forward(void *handle, void *descriptor, const void *alpha, const Tensor *x, const void *x_data,  \
                           const void *beta, const Tensor *y) {                                                     \
    return record_tensors("cudnn" #kind "Forward", "x", x, "y", y);                                                 \
  }                                                                                                                 \
  int cudnn##kind##Backward(void *handle, void *descriptor, const void *alpha, const Tensor *y, const void *y_data, \
                            const Tensor *dy, const void *dy_data, const Tensor *x) {                               \
    return record_tensors("cudnn" #kind "Backward", "x", x, "y", dy);                                               \
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
