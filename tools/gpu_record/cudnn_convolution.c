/* Convolutions of cuDNN: dtypes, shapes, dtype of the sums, math type. */
#include "cudnn.h"

#include <stdlib.h>

typedef struct {
  int math, compute, groups;
} Convolution;
DESCRIPTOR(Convolution, Convolution)

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

enum { ALGORITHM = 1, ALGORITHMS = 8 };

/* Offers one algorithm, which always does, with the math type that the convolution asks for. */
static int find_algorithm(const char *call, const Convolution *convolution, int wanted, int *found, Performance *best) {
  *found = wanted > 0;
  if (*found)
    *best = (Performance){.algorithm = ALGORITHM,
                          .milliseconds = 1,
                          .workspace = DNN_WORKSPACE,
                          .determinism = 1,
                          .math = convolution->math};
  return line_alone(call);
}

#define CHOICE(direction)                                                                                           \
  int cudnnGetConvolution##direction##AlgorithmMaxCount(void *handle, int *count) {                                 \
    *count = ALGORITHMS;                                                                                            \
    return 0;                                                                                                       \
  }                                                                                                                 \
  int cudnnFindConvolution##direction##Algorithm(void *handle, const Tensor *a, const Tensor *b,                    \
                                                 const Convolution *convolution, const Tensor *c, int wanted,       \
                                                 int *found, Performance *best) {                                   \
    return find_algorithm("cudnnFindConvolution" #direction "Algorithm", convolution, wanted, found, best);         \
  }                                                                                                                 \
  int cudnnGetConvolution##direction##Algorithm_v7(void *handle, const Tensor *a, const Tensor *b,                  \
                                                   const Convolution *convolution, const Tensor *c, int wanted,     \
                                                   int *found, Performance *best) {                                 \
    return find_algorithm("cudnnGetConvolution" #direction "Algorithm_v7", convolution, wanted, found, best);       \
  }                                                                                                                 \
  int cudnnGetConvolution##direction##WorkspaceSize(void *handle, const Tensor *a, const Tensor *b,                 \
                                                    const Convolution *convolution, const Tensor *c, int algorithm, \
                                                    size_t *bytes) {                                                \
    *bytes = DNN_WORKSPACE;                                                                                         \
    return 0;                                                                                                       \
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
  line_string("compute", dnn_dtype(convolution->compute));
  line_string("math", dnn_math(convolution->math));
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
